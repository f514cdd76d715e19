"""Models that come in chunks, for all clients of a process: each comes once, however many of them want it. Pure, but
for the parts.

The client that asked first fetches it over its connection, and the others wait for it. When that client is given
another task, the next one goes on from where it was.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unstale_proto import payload
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import WINDOW_BYTES, Part, Receiving

log = logging.getLogger("unstale.client")

PLACES = 2  # models that come at once; each is a model's size of files, or of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKey:
    """Which model it is."""

    run_id: str
    version: int
    checksum: str
    payload_bytes: int

    @property
    def name(self) -> str:
        """Of its part."""
        return f"{self.run_id[:8]}-{self.version}-{self.checksum}"


@dataclass(slots=True, eq=False)
class _Model:
    """wanted_by: clients with their tasks; the first one fetches it. receiving: None while it waits for a place.
    frames: of it, once it is whole."""

    wanted_by: dict[int, int] = field(default_factory=dict)
    receiving: Receiving | None = None
    frames: Sequence[memoryview] | None = None


class Models:
    """One thread.

    open_part: by name; raises OSError. spare_part: one that needs no disk. found: names of parts from before this
    process. delete: lets go of one of those. window_bytes: of one model, on their way at once.
    """

    def __init__(
        self,
        open_part: Callable[[str], Part],
        spare_part: Callable[[], Part],
        *,
        found: Sequence[str] = (),
        delete: Callable[[str], None] = lambda _: None,
        window_bytes: int = WINDOW_BYTES,
        places: int = PLACES,
    ) -> None:
        self._open_part = open_part
        self._spare_part = spare_part
        self._found = list(found)
        self._delete = delete
        self._window_bytes = window_bytes
        self._places = places
        self._models: dict[ModelKey, _Model] = {}
        self._key_of: dict[int, ModelKey] = {}  # by client
        self._woken: dict[int, None] = {}

    def want(self, client_id: int, task_id: int, key: ModelKey) -> None:
        """A client was given a task with this model. It is to ask at once, and is not woken for that."""
        self.leave(client_id)
        self._key_of[client_id] = key
        self._models.setdefault(key, _Model()).wanted_by[client_id] = task_id
        self._give_places()
        self._woken.pop(client_id, None)

    def leave(self, client_id: int) -> None:
        """A client needs no model now."""
        key = self._key_of.pop(client_id, None)
        if key is None:
            return
        model = self._models[key]
        fetched = next(iter(model.wanted_by)) == client_id
        del model.wanted_by[client_id]
        if fetched and model.wanted_by and model.frames is None:
            self._woken[next(iter(model.wanted_by))] = None
        self._give_places()

    def woken(self) -> list[int]:
        """Clients for whom something has changed since this was last asked."""
        woken = list(self._woken)
        self._woken.clear()
        return woken

    def frames(self, client_id: int) -> Sequence[memoryview] | None:
        """The model that a client wants, if it is there."""
        key = self._key_of.get(client_id)
        return None if key is None else self._models[key].frames

    def ask(self, client_id: int) -> Credit | None:
        """What a client should say of the model that it wants; None while it waits for another one to fetch it, or for
        its turn."""
        key = self._key_of[client_id]
        model = self._models[key]
        task_id = model.wanted_by[client_id]
        if model.frames is not None:
            return Credit(task_id=task_id, have=key.payload_bytes, until=key.payload_bytes, again=True)
        if model.receiving is None or next(iter(model.wanted_by)) != client_id:
            return None
        model.receiving.task_id = task_id
        return model.receiving.ask()

    def take(self, client_id: int, chunk: Chunk, frames: Sequence[memoryview]) -> Credit | None:
        """A chunk came to a client; what to answer. Raises RemoteContractError for one that may not be, and when what
        comes is wrong again and again."""
        key = self._key_of.get(client_id)
        model = None if key is None else self._models[key]
        if key is None or model is None or model.receiving is None or model.frames is not None:
            return None  # long under way
        if next(iter(model.wanted_by)) != client_id or model.wanted_by[client_id] != chunk.task_id:
            return None
        receiving = model.receiving
        try:
            credit = receiving.take(chunk.offset, frames)
        except OSError as error:
            self._move_to_spare(receiving, error)
            credit = receiving.take(chunk.offset, frames)
        return self._finished(key, model) if receiving.is_whole else credit

    def close(self) -> None:
        """Nothing of it is needed any more."""
        for model in self._models.values():
            if model.receiving is not None:
                model.receiving.part.delete()
        self._models.clear()
        self._key_of.clear()
        self._forget_found()

    def _finished(self, key: ModelKey, model: _Model) -> Credit | None:
        assert model.receiving is not None
        if model.receiving.is_right():
            self._is_there(model, model.receiving)
            self._give_places()
            return None
        log.warning("the model of version %d was damaged on its way", key.version)
        if model.receiving.is_hopeless:
            model.receiving.part.delete()
            model.receiving = None
            raise RemoteContractError(
                Reason.WRONG_CHECKSUM, "the model came with a wrong checksum, every time"
            )
        return model.receiving.ask()

    def _give_places(self) -> None:
        """Begin with those whose turn it is, and let go of what nobody wants."""
        coming = 0
        for key, model in self._models.items():
            if model.frames is not None or not model.wanted_by:
                continue
            if model.receiving is not None and model.receiving.is_whole:
                self._is_there(model, model.receiving)
                continue
            coming += 1
            if coming <= self._places and model.receiving is None:
                self._begin(key, model)
                self._woken[next(iter(model.wanted_by))] = None
        unwanted = [key for key, model in self._models.items() if not model.wanted_by]
        for key in unwanted[-1:]:  # it may be given again, and holds no memory until then
            self._models[key].frames = None
        for key in unwanted[:-1]:
            model = self._models.pop(key)
            if model.receiving is not None:
                model.receiving.part.delete()

    def _forget_found(self, but: str | None = None) -> None:
        """Delete the parts from before this process. but: name of one that is not."""
        for name in self._found:
            if name != but:
                self._delete(name)
        self._found.clear()

    def _begin(self, key: ModelKey, model: _Model) -> None:
        self._forget_found(but=key.name)
        try:
            part = self._open_part(key.name)
        except OSError as error:
            log.warning("a model is kept in memory as it comes: %s", error.strerror)
            part = self._spare_part()
        task_id = next(iter(model.wanted_by.values()))
        model.receiving = Receiving(
            task_id, key.payload_bytes, key.checksum, part, window_bytes=self._window_bytes
        )
        model.receiving.has_place = True
        if model.receiving.is_whole and model.receiving.is_right():
            self._is_there(model, model.receiving)

    def _is_there(self, model: _Model, receiving: Receiving) -> None:
        model.frames = payload.split(receiving.part.mapped())
        self._woken.update(dict.fromkeys(model.wanted_by))

    def _move_to_spare(self, receiving: Receiving, error: OSError) -> None:
        log.warning("a model is kept in memory as it comes: %s", error.strerror)
        before, receiving.part = receiving.part, self._spare_part()
        if before.have:
            receiving.part.append(before.mapped())
        before.delete()
