"""The files of a client process: unacknowledged updates, and the clients' own state.

    CLIENT-NUMBER.update    an update, stored before it is first sent, deleted after its ack. NUMBER: of its task
    CLIENT.state            the client's own state, for trainings with state and lossy encodings
    lock                    which clients have a process here
    starts                  number of processes started here, and a random name of the folder

An accepted update may change the state of its client (SCAFFOLD's c_i, MOON's last model), which must happen exactly
once, wherever the process is killed. So the file of an update holds the state after it too, and an accepting `ack`

    1. rewrites CLIENT.state: the state, and the numbers of the latest updates in it;
    2. deletes CLIENT-NUMBER.update.

A process killed before 1 sends the update again, and the server repeats its first verdict. One killed between 1 and 2
finds the update's number in the state at the next start, and deletes the update. If 1 fails, 2 is skipped: the file
stays until a state that includes it is stored. A rejected update is deleted; if that is lost, it is sent and rejected
again.

An update that cannot be stored, on a full disk for example, is kept in memory and sent all the same, with one warning.
No promise is broken: it has no ack yet, so if the process is killed too, the server gives the task again.

Starts are counted because the server keeps, of two processes of one client, the one that started later, in whatever
order their hellos arrive.
"""

import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field
from torch import Tensor

from unstale import flat
from unstale.client import atomic_file
from unstale.client.actions import PendingUpdate
from unstale.client.atomic_file import Facts, Record
from unstale.errors import UserError
from unstale.journal.disk import NOFOLLOW, DamagedError, private_folder, trouble, user_errors
from unstale_proto import codec, limits, payload
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import ProcessStart, Update

log = logging.getLogger("unstale.client")

State = Mapping[str, Tensor]
"""State of a client, by name: vectors of float32 on the host."""

_NAME = re.compile(r"(\d+)(?:-(\d+)\.update|\.state)(\.tmp)?", re.ASCII)
# Successful writes in a row after which a full disk counts as free again: it may have room for small files only.
_CALM_WRITES = 100
_SETTLED_MAX = limits.HOLDING_MAX  # more than a client can have unacknowledged


class _StateFacts(Facts):
    """settled: numbers of the latest updates in the state. keeps: names of the parts."""

    run_id: str
    settled: tuple[int, ...]
    keeps: tuple[str, ...]


class _UpdateFacts(Facts):
    """Parts: header, payload, and the state after the update, by the names in `keeps`."""

    run_id: str
    number: int
    keeps: tuple[str, ...]


class _StartFacts(Facts):
    """home: random name of the folder. number: of starts."""

    home: str = Field(pattern=r"^[0-9a-f]{32}$")
    number: int = Field(ge=0)


class _Stored(NamedTuple):
    """A stored update. keeps: whether it holds state."""

    run_id: str
    keeps: bool


class Outbox:
    """The files of clients `first` to `first + count - 1`, for one thread at a time. Processes may share the folder.

    durable: files survive a power failure. Raises UserError for an unusable folder, and for a client that another
    process hosts there.
    """

    def __init__(self, folder: Path, first: int, count: int, *, durable: bool) -> None:
        self.folder = folder
        self._clients = range(first, first + count)
        self._durable = durable
        self._stored: dict[tuple[int, int], _Stored] = {}  # by client and number
        self._states: set[int] = set()
        self._settled: dict[int, list[int]] = {}
        self._calm_writes = _CALM_WRITES  # successful writes in a row; fewer mean that the disk may be full
        with user_errors("use client.directory", folder):
            private_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
        self._lock_clients()

    def _lock_clients(self) -> None:
        """Lock the bytes of the lock file at these clients' ids, until the process ends."""
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, len(self._clients), self._clients.start)
        except (BlockingIOError, PermissionError):
            os.close(self._lock)
            raise UserError(
                f"client.directory {self.folder} is in use for one of the clients {self._clients.start} to "
                f"{self._clients.stop - 1}; end the other process, give each one ids of its own with --first, or name "
                "another folder"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise trouble("lock client.directory", self.folder, error) from None

    def close(self) -> None:
        """Unlock these clients. The files stay."""
        os.close(self._lock)

    # --- when the process starts ---

    def next_start(self) -> ProcessStart:
        """Count and store one more start. Called once.

        If it cannot be stored, the next process has the same number, and the server keeps the one with the latest
        hello.
        """
        path = self.folder / "starts"
        with self._exclusive():
            last = _read_starts(path)
            home = secrets.token_hex(16) if last is None else last.home
            number = 1 if last is None else last.number + 1
            try:
                atomic_file.write(path, {"home": home, "number": number}, [], durable=True)
            except OSError as error:
                log.warning("cannot write %s (%s); the start of this process is not counted", path, error.strerror)
        return ProcessStart(home=home, number=number)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the byte of the lock file after those of all clients."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, limits.CLIENTS_MAX, os.SEEK_SET)
        except OSError as error:
            raise UserError(
                f"client.directory cannot be locked ({error.strerror}); name a folder on another disk"
            ) from None
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, limits.CLIENTS_MAX, os.SEEK_SET)

    def load(self) -> dict[int, list[PendingUpdate]]:
        """The unacknowledged updates by client, oldest first and fewer than `HOLDING_MAX` each.

        Damaged files are deleted, with a warning. Raises UserError for an unreadable file.
        """
        return {
            client_id: self._load_client(client_id, [number for _, number in of_client])
            for client_id, of_client in groupby(sorted(self._list()), key=lambda update: update[0])
        }

    def _list(self) -> Iterator[tuple[int, int]]:
        """Client and number of each update. Records which states exist; deletes incomplete files."""
        with user_errors("read client.directory", self.folder):
            names = os.listdir(self.folder)
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None or (client_id := int(match[1])) not in self._clients:
                continue
            if match[3]:
                self._delete(self.folder / name)
            elif match[2]:
                yield client_id, int(match[2])
            else:
                self._states.add(client_id)

    def _load_client(self, client_id: int, numbers: Sequence[int]) -> list[PendingUpdate]:
        state = self._read_state(client_id)
        unacknowledged = []
        for number in numbers:
            path = self._update_path(client_id, number)
            try:
                pending, after = _read_update(path, number)
            except DamagedError as error:
                self._delete_damaged(path, error)
                continue
            self._stored[client_id, number] = _Stored(pending.run_id, bool(after))
            is_same_run = state is not None and state.facts.run_id == pending.run_id
            if state is not None and is_same_run and number in state.facts.settled:
                self.drop(client_id, pending.run_id, number)
            else:
                unacknowledged.append(pending)
        for pending in unacknowledged[: -limits.HOLDING_MAX + 1]:
            self.drop(client_id, pending.run_id, pending.number)
        return unacknowledged[-limits.HOLDING_MAX + 1 :]

    def restore(self, run_id: str) -> Iterator[tuple[int, State, dict[int, State]]]:
        """Begin a run: for each client with stored state that state, and by number the states after unacknowledged
        updates. States of other runs are deleted.
        """
        pending: dict[int, dict[int, State]] = {}
        for (client_id, number), stored in sorted(self._stored.items()):
            if stored.keeps and stored.run_id == run_id:
                _, after = _read_update(self._update_path(client_id, number), number)
                pending.setdefault(client_id, {})[number] = _tensors(after)
        self._settled.clear()
        for client_id in sorted({*self._states, *pending}):
            yield client_id, self._state_of(client_id, run_id), pending.get(client_id, {})

    def _state_of(self, client_id: int, run_id: str) -> State:
        state = self._read_state(client_id)
        if state is None:
            return {}
        if state.facts.run_id != run_id:
            self._delete_state(client_id)
            return {}
        self._settled[client_id] = list(state.facts.settled)
        return _tensors(dict(zip(state.facts.keeps, state.parts, strict=True)))

    # --- while it runs ---

    def put(self, client_id: int, pending: PendingUpdate, state: State) -> PendingUpdate:
        """Store an update before it is sent. state: of the client after the update, if it is accepted.

        Returns the same update; the bytes of a large one are a mapping of the file, to save memory.
        """
        path = self._update_path(client_id, pending.number)
        facts = {"run_id": pending.run_id, "number": pending.number, "keeps": list(state)}
        header = codec.encode(pending.update)
        if not self._write(path, facts, [[header], pending.parcel, *_frames(state)]):
            return pending
        self._stored[client_id, pending.number] = _Stored(pending.run_id, bool(state))
        if pending.update.payload_bytes < atomic_file.MAPPED_BYTES:
            return pending
        try:
            return replace(pending, parcel=_read_update(path, pending.number)[0].parcel)
        except UserError as error:
            log.warning("%s, although it was just written", error)
            return pending

    def waits_for_state(self, client_id: int, run_id: str, number: int) -> bool:
        """Whether a stored update holds state."""
        return self._stored.get((client_id, number)) == _Stored(run_id, keeps=True)

    def keep(self, client_id: int, run_id: str, number: int, state: State) -> None:
        """An update was accepted. state: of its client now."""
        settled = [*self._settled.get(client_id, ()), number][-_SETTLED_MAX:]
        self._settled[client_id] = settled
        facts = {"run_id": run_id, "settled": settled, "keeps": list(state)}
        if self._write(self._state_path(client_id), facts, _frames(state)):
            self._states.add(client_id)
            for settled_number in settled:
                self.drop(client_id, run_id, settled_number)

    def drop(self, client_id: int, run_id: str, number: int) -> None:
        """Delete an update of this run that will not be sent again."""
        stored = self._stored.get((client_id, number))
        if stored is not None and stored.run_id == run_id:
            del self._stored[client_id, number]
            self._delete(self._update_path(client_id, number))

    def clear(self, client_id: int, run_id: str) -> None:
        """The run is over: delete a client's files of it."""
        for owner, number in list(self._stored):
            if owner == client_id:
                self.drop(client_id, run_id, number)
        state = self._read_state(client_id)
        if state is not None and state.facts.run_id == run_id:
            self._delete_state(client_id)

    # --- files ---

    def _update_path(self, client_id: int, number: int) -> Path:
        return self.folder / f"{client_id}-{number}.update"

    def _state_path(self, client_id: int) -> Path:
        return self.folder / f"{client_id}.state"

    def _read_state(self, client_id: int) -> Record[_StateFacts] | None:
        """None if there is none, or if it is damaged."""
        if client_id not in self._states:
            return None
        path = self._state_path(client_id)
        try:
            state = atomic_file.read(path, _StateFacts)
            if not _are_vectors(state.facts.keeps, state.parts):
                raise atomic_file.damaged(path)
            return state
        except DamagedError as error:
            self._states.discard(client_id)
            self._delete_damaged(path, error)
            return None

    def _delete_damaged(self, path: Path, error: DamagedError) -> None:
        log.warning("%s and is deleted; its client continues without it", error)
        self._delete(path)

    def _write(self, path: Path, facts: Mapping[str, Any], parts: Sequence[Sequence[bytes | memoryview]]) -> bool:
        """Whether the file was stored. Logs when writing starts to fail, and when it works again."""
        try:
            atomic_file.write(path, facts, parts, durable=self._durable)
        except OSError as error:
            if self._calm_writes == _CALM_WRITES:
                log.warning(
                    "%s; until then updates are kept in memory, and lost if this process is killed",
                    trouble("write", path, error),
                )
            self._calm_writes = 0
            return False
        if self._calm_writes < _CALM_WRITES:
            self._calm_writes += 1
            if self._calm_writes == _CALM_WRITES:
                log.info("%s: updates are stored again", self.folder)
        return True

    def _delete_state(self, client_id: int) -> None:
        self._states.discard(client_id)
        self._settled.pop(client_id, None)
        self._delete(self._state_path(client_id))

    def _delete(self, path: Path) -> None:
        with suppress(OSError):  # an update left here is sent again after the next start, and found to be a duplicate
            path.unlink()


def _read_starts(path: Path) -> _StartFacts | None:
    """None if the file is absent or damaged: the count restarts."""
    if not path.exists():
        return None
    try:
        return atomic_file.read(path, _StartFacts).facts
    except DamagedError as error:
        log.warning("%s; the count of process starts restarts", error)
        return None


def _read_update(path: Path, number: int) -> tuple[PendingUpdate, Mapping[str, memoryview]]:
    """An update, and by name the state after it. Raises DamagedError, also for an update of a version that is not
    supported; UserError for an unreadable file.
    """
    record = atomic_file.read(path, _UpdateFacts)
    facts, state = record.facts, record.parts[2:]
    if facts.number != number or len(record.parts) < 2 or not _are_vectors(facts.keeps, state):
        raise atomic_file.damaged(path)
    header, body = record.parts[:2]
    try:
        update = codec.decode(header)
    except RemoteContractError as error:
        raise DamagedError(f"a stored update of run {facts.run_id} cannot be read by this version ({error})") from None
    if not isinstance(update, Update) or len(body) != update.payload_bytes:
        raise atomic_file.damaged(path)
    pending = PendingUpdate(run_id=facts.run_id, number=number, update=update, parcel=payload.split(body))
    return pending, dict(zip(facts.keeps, state, strict=True))


def _are_vectors(names: Sequence[str], parts: Sequence[memoryview]) -> bool:
    return len(set(names)) == len(names) == len(parts) and all(len(part) % limits.FLOAT_BYTES == 0 for part in parts)


def _frames(state: State) -> list[list[memoryview]]:
    return [[flat.to_bytes(tensor)] for tensor in state.values()]


def _tensors(state: Mapping[str, memoryview]) -> dict[str, Tensor]:
    return {name: flat.from_bytes([part], len(part) // limits.FLOAT_BYTES) for name, part in state.items()}
