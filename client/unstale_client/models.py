"""Models that come in chunks, each once for all clients of a process. Pure, except for the partial files.

The first client that wants a model downloads it over its connection, and the others wait. When that client gets another
task, the next one resumes the download.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unstale_proto import payload
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import WINDOW_BYTES, Part, Receiving

log = logging.getLogger("unstale.client")

PLACES = 2  # concurrent downloads; each takes a model's size of disk or memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKey:
    run_id: str
    version: int
    checksum: str
    payload_bytes: int

    @property
    def name(self) -> str:
        """Name of its partial file."""
        return f"{self.run_id[:8]}-{self.version}-{self.checksum}"


@dataclass(slots=True, eq=False)
class _Model:
    """A model that clients want, or the latest one that they wanted."""

    tasks: dict[int, int] = field(default_factory=dict)  # task id by client; the first client downloads
    receiving: Receiving | None = None  # None until the download starts
    frames: Sequence[memoryview] | None = None  # None until the model is complete

    @property
    def downloader(self) -> int:
        return next(iter(self.tasks))

    @property
    def is_incomplete(self) -> bool:
        return bool(self.tasks) and self.frames is None

    def delete(self) -> None:
        if self.receiving is not None:
            self.receiving.part.delete()
            self.receiving = None


@dataclass(slots=True)
class Models:
    """For one thread."""

    open_part: Callable[[str], Part]  # opens a partial file by name; raises OSError
    spare_part: Callable[[], Part]  # makes a partial file in memory
    partial_names: list[str] = field(default_factory=list)  # of partial files of earlier processes
    delete: Callable[[str], None] = lambda _: None  # deletes one of those
    window_bytes: int = WINDOW_BYTES
    places: int = PLACES
    _models: dict[ModelKey, _Model] = field(default_factory=dict, init=False)
    _key_of: dict[int, ModelKey] = field(default_factory=dict, init=False)  # by client
    _woken: dict[int, None] = field(default_factory=dict, init=False)

    def want(self, client_id: int, task_id: int, key: ModelKey) -> None:
        """A client received a task with this model. It calls `ask` itself, so it is not woken."""
        self.leave(client_id)
        self._key_of[client_id] = key
        self._models.setdefault(key, _Model()).tasks[client_id] = task_id
        self._update()
        self._woken.pop(client_id, None)

    def leave(self, client_id: int) -> None:
        """A client needs no model now."""
        key = self._key_of.pop(client_id, None)
        if key is None:
            return
        model = self._models[key]
        was_downloader = model.downloader == client_id
        del model.tasks[client_id]
        if was_downloader and model.tasks and model.frames is None:
            self._woken[model.downloader] = None
        self._update()

    def woken(self) -> list[int]:
        """Clients whose download changed since the last call."""
        woken = list(self._woken)
        self._woken.clear()
        return woken

    def frames(self, client_id: int) -> Sequence[memoryview] | None:
        """The model that a client wants, if it is complete."""
        key = self._key_of.get(client_id)
        return None if key is None else self._models[key].frames

    def ask(self, client_id: int) -> Credit | None:
        """The credit that a client sends for its model; None while another client downloads it, or before its turn."""
        key = self._key_of[client_id]
        model = self._models[key]
        task_id = model.tasks[client_id]
        if model.frames is not None:
            return Credit(task_id=task_id, have=key.payload_bytes, until=key.payload_bytes, again=True)
        if model.receiving is None or model.downloader != client_id:
            return None
        model.receiving.task_id = task_id
        return model.receiving.ask()

    def take(self, client_id: int, chunk: Chunk, frames: Sequence[memoryview]) -> Credit | None:
        """Take a chunk; returns the answer. Raises RemoteContractError for a chunk that is not allowed, and for a model
        that keeps coming with a wrong checksum.
        """
        key = self._key_of.get(client_id)
        model = None if key is None else self._models[key]
        if key is None or model is None or model.receiving is None or model.frames is not None:
            return None  # late
        if model.downloader != client_id or model.tasks[client_id] != chunk.task_id:
            return None
        receiving = model.receiving
        try:
            credit = receiving.take(chunk.offset, frames)
        except OSError as error:
            self._move_to_spare(receiving, error)
            credit = receiving.take(chunk.offset, frames)
        return self._verified(key, model, receiving) if receiving.is_whole else credit

    def close(self) -> None:
        """Delete all partial files."""
        for model in self._models.values():
            model.delete()
        self._models.clear()
        self._key_of.clear()
        self._delete_found()

    def _verified(self, key: ModelKey, model: _Model, receiving: Receiving) -> Credit | None:
        if receiving.is_right():
            self._complete(model, receiving)
            self._update()
            return None
        log.warning("the model of version %d arrived with a wrong checksum", key.version)
        if receiving.is_unusable:
            model.delete()
            raise RemoteContractError(Reason.WRONG_CHECKSUM, "the model came with a wrong checksum, every time")
        return receiving.ask()

    def _update(self) -> None:
        """Complete and start downloads, and drop models that no client needs."""
        for model in self._models.values():
            if model.is_incomplete and model.receiving is not None and model.receiving.is_whole:
                self._complete(model, model.receiving)
        incomplete = [(key, model) for key, model in self._models.items() if model.is_incomplete]
        for key, model in incomplete[: self.places]:
            if model.receiving is None:
                self._start(key, model)
                self._woken[model.downloader] = None
        self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        unwanted = [key for key, model in self._models.items() if not model.tasks]
        for key in unwanted[-1:]:  # the next task may use it; it takes no memory until then
            self._models[key].frames = None
        for key in unwanted[:-1]:
            self._models.pop(key).delete()

    def _start(self, key: ModelKey, model: _Model) -> None:
        self._delete_found(except_name=key.name)
        try:
            part = self.open_part(key.name)
        except OSError as error:
            part = self._part_in_memory(error)
        task_id = model.tasks[model.downloader]
        receiving = Receiving(task_id, key.payload_bytes, key.checksum, part, window_bytes=self.window_bytes)
        receiving.has_place = True
        model.receiving = receiving
        if receiving.is_whole and receiving.is_right():
            self._complete(model, receiving)

    def _complete(self, model: _Model, receiving: Receiving) -> None:
        model.frames = payload.split(receiving.part.mapped())
        self._woken.update(dict.fromkeys(model.tasks))

    def _move_to_spare(self, receiving: Receiving, error: OSError) -> None:
        full, receiving.part = receiving.part, self._part_in_memory(error)
        if full.have:
            receiving.part.append(full.mapped())
        full.delete()

    def _part_in_memory(self, error: OSError) -> Part:
        log.warning("a model cannot be stored on disk (%s); it is downloaded to memory", error.strerror)
        return self.spare_part()

    def _delete_found(self, except_name: str | None = None) -> None:
        for name in self.partial_names:
            if name != except_name:
                self.delete(name)
        self.partial_names.clear()
