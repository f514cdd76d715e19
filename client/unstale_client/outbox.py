"""The files of a client process: unacknowledged updates, and the states of its clients.

    CLIENT-NUMBER.update    an update, from before its first transmission until its ack; NUMBER is its `Task.number`
    CLIENT.state            the client's state, for trainings with state and lossy encodings
    lock                    a byte for each client, which the process that hosts the client locks (not on Windows)
    starts                  number of processes started in this folder, and a random id of the folder

An accepted update may change the state of its client (SCAFFOLD's c_i, MOON's last model). This must happen exactly
once, even if the process is killed. Therefore the file of an update also contains the state after the update, and an
accepting `ack`

    1. rewrites CLIENT.state: the state, and the numbers of the latest updates in it;
    2. deletes CLIENT-NUMBER.update.

A process killed before 1 sends the update again, and the server repeats its first verdict. One killed between 1 and 2
finds the update's number in the state at the next start, and deletes the update. If 1 fails, 2 is skipped: the file
stays until a state that includes the update is stored. A rejected update is deleted; if the deletion is lost, the
update is sent and rejected again.

An update that cannot be stored, on a full disk for example, is kept in memory and sent nevertheless, with one warning.
If the process is killed before the ack, the server gives the task again.

Starts are counted so that, of two processes of one client, the server keeps the later one, even if its hello is first.
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

from unstale_client import atomic_file, vectors
from unstale_client.actions import PendingUpdate
from unstale_client.atomic_file import Facts, Record
from unstale_client.disk import NOFOLLOW, DamagedError, private_folder, trouble, user_errors
from unstale_client.errors import UserError
from unstale_client.setting_names import CONFIGURATION, SettingNames
from unstale_proto import codec, limits, payload
from unstale_proto.encodings import Vector
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import ProcessStart, Update

log = logging.getLogger("unstale.client")

State = Mapping[str, Vector]
"""State of a client, by name: vectors of float32."""

_NAME = re.compile(r"(\d+)(?:-(\d+)\.update|\.state)(\.tmp)?", re.ASCII)
# Consecutive successful writes that prove that the disk has room again: a full disk may still take small files.
_RECOVERY_WRITES = 100
_SETTLED_MAX = limits.HOLDING_MAX  # more than the unacknowledged updates of a client


class _StateFacts(Facts):
    """Facts of a state. settled: numbers of the latest updates that it includes. keeps: names of its vectors."""

    run_id: str
    settled: tuple[int, ...]
    keeps: tuple[str, ...]


class _UpdateFacts(Facts):
    """Facts of an update. Its parts are header, payload, and the vectors of the state after it, named in `keeps`."""

    run_id: str
    number: int
    keeps: tuple[str, ...]


class _StartFacts(Facts):
    """Facts of `starts`. home: random id of the folder. number: count of starts."""

    home: str = Field(pattern=r"^[0-9a-f]{32}$")
    number: int = Field(ge=0)


class _Stored(NamedTuple):
    """A stored update."""

    run_id: str
    has_state: bool


class Outbox:
    """The files of clients `first` to `first + count - 1`. One thread at a time; processes may share the folder.

    durable: files survive a power failure. Raises UserError for an unusable folder, and if another process hosts one of
    the clients there.
    """

    def __init__(
        self, folder: Path, first: int, count: int, *, durable: bool, names: SettingNames = CONFIGURATION
    ) -> None:
        self.folder = folder
        self._names = names
        self._clients = range(first, first + count)
        self._durable = durable
        self._stored: dict[tuple[int, int], _Stored] = {}  # by client and number
        self._states: set[int] = set()
        self._settled: dict[int, list[int]] = {}
        self._good_writes = _RECOVERY_WRITES  # consecutive, since the latest failed one
        with user_errors(f"use {names.directory}", folder):
            private_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
        self._lock_clients()

    def _lock_clients(self) -> None:
        """Lock the bytes of the lock file at these clients' ids, until `close`."""
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, len(self._clients), self._clients.start)
        except (BlockingIOError, PermissionError):
            os.close(self._lock)
            raise UserError(
                f"{self._names.directory} {self.folder} is in use for one of the clients {self._clients.start} to "
                f"{self._clients.stop - 1}; end the other process, give each one {self._names.own_ids}, or name "
                "another folder"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise trouble(f"lock {self._names.directory}", self.folder, error) from None

    def close(self) -> None:
        """Unlock these clients. The files stay."""
        os.close(self._lock)

    # --- start of the process ---

    def next_start(self) -> ProcessStart:
        """Count and store the start of this process. Called once.

        If the number cannot be stored, the next process gets it too; the server then keeps that of the latest hello.
        """
        path = self.folder / "starts"
        with self._starts_locked():
            last = _read_starts(path)
            home = secrets.token_hex(16) if last is None else last.home
            number = 1 if last is None else last.number + 1
            try:
                atomic_file.write(path, {"home": home, "number": number}, [], durable=True)
            except OSError as error:
                log.warning("cannot write %s (%s); the start of this process is not counted", path, error.strerror)
        return ProcessStart(home=home, number=number)

    @contextmanager
    def _starts_locked(self) -> Iterator[None]:
        """Lock `starts` in the block, by the byte of the lock file after those of all clients."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, limits.CLIENTS_MAX, os.SEEK_SET)
        except OSError as error:
            raise UserError(
                f"{self._names.directory} cannot be locked ({error.strerror}); name a folder on another disk"
            ) from None
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, limits.CLIENTS_MAX, os.SEEK_SET)

    def load(self) -> dict[int, list[PendingUpdate]]:
        """The unacknowledged updates by client, oldest first; of each client the newest `HOLDING_MAX` - 1, because a
        hello also names the task. Older and damaged ones are deleted. Raises UserError for an unreadable file.
        """
        return {
            client_id: self._load_client(client_id, [number for _, number in of_client])
            for client_id, of_client in groupby(sorted(self._scan()), key=lambda update: update[0])
        }

    def _scan(self) -> Iterator[tuple[int, int]]:
        """Yield client and number of each update, record which states exist, and delete incomplete files."""
        with user_errors(f"read {self._names.directory}", self.folder):
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
        settled = set() if state is None else {(state.facts.run_id, number) for number in state.facts.settled}
        unacknowledged = []
        for number in numbers:
            path = self._update_path(client_id, number)
            try:
                pending, after = _read_update(path, number)
            except DamagedError as error:
                self._delete_damaged(path, error)
                continue
            self._stored[client_id, number] = _Stored(pending.run_id, bool(after))
            if (pending.run_id, number) in settled:
                self.drop(client_id, pending.run_id, number)
            else:
                unacknowledged.append(pending)
        for pending in unacknowledged[: -limits.HOLDING_MAX + 1]:
            self.drop(client_id, pending.run_id, pending.number)
        return unacknowledged[-limits.HOLDING_MAX + 1 :]

    def restore(self, run_id: str) -> Iterator[tuple[int, State, dict[int, State]]]:
        """Begin a run: yield clients, their states, and by number the states after their unacknowledged updates.

        Yields only clients with such states. Deletes states of other runs.
        """
        pending: dict[int, dict[int, State]] = {}
        for (client_id, number), stored in sorted(self._stored.items()):
            if stored.has_state and stored.run_id == run_id:
                _, after = _read_update(self._update_path(client_id, number), number)
                pending.setdefault(client_id, {})[number] = _vectors(after)
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
        return _vectors(dict(zip(state.facts.keeps, state.parts, strict=True)))

    # --- during the run ---

    def put(self, client_id: int, pending: PendingUpdate, state: State) -> PendingUpdate:
        """Store an update before it is sent. state: the client's, if the update is accepted.

        Returns the same update; the payload of a large one is memory-mapped from the file, which saves memory.
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

    def has_state(self, client_id: int, run_id: str, number: int) -> bool:
        """Whether the file of an update contains the state after it."""
        return self._stored.get((client_id, number)) == _Stored(run_id, has_state=True)

    def keep(self, client_id: int, run_id: str, number: int, state: State) -> None:
        """Store the client's state, which includes this accepted update, and delete the included updates."""
        settled = [*self._settled.get(client_id, ()), number][-_SETTLED_MAX:]
        self._settled[client_id] = settled
        facts = {"run_id": run_id, "settled": settled, "keeps": list(state)}
        if self._write(self._state_path(client_id), facts, _frames(state)):
            self._states.add(client_id)
            for settled_number in settled:
                self.drop(client_id, run_id, settled_number)

    def drop(self, client_id: int, run_id: str, number: int) -> None:
        """Delete an update that will not be sent again, if it is of this run."""
        stored = self._stored.get((client_id, number))
        if stored is not None and stored.run_id == run_id:
            del self._stored[client_id, number]
            self._delete(self._update_path(client_id, number))

    def clear(self, client_id: int, run_id: str) -> None:
        """Delete a client's files of a finished run."""
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
        """The stored state; None if it is absent or damaged."""
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
        """Write a file, and return whether that worked. Logs the first failure, and the recovery."""
        try:
            atomic_file.write(path, facts, parts, durable=self._durable)
        except OSError as error:
            if self._good_writes == _RECOVERY_WRITES:
                log.warning(
                    "%s; meanwhile updates are kept in memory, and lost if this process is killed",
                    trouble("write", path, error),
                )
            self._good_writes = 0
            return False
        if self._good_writes < _RECOVERY_WRITES:
            self._good_writes += 1
            if self._good_writes == _RECOVERY_WRITES:
                log.info("%s: updates are stored again", self.folder)
        return True

    def _delete_state(self, client_id: int) -> None:
        self._states.discard(client_id)
        self._settled.pop(client_id, None)
        self._delete(self._state_path(client_id))

    def _delete(self, path: Path) -> None:
        with suppress(OSError):  # the next process sends a remaining update again, and gets the first verdict
            path.unlink()


def _read_starts(path: Path) -> _StartFacts | None:
    """The stored count; None if it is absent or damaged, and restarts."""
    if not path.exists():
        return None
    try:
        return atomic_file.read(path, _StartFacts).facts
    except DamagedError as error:
        log.warning("%s; the count of process starts restarts", error)
        return None


def _read_update(path: Path, number: int) -> tuple[PendingUpdate, Mapping[str, memoryview]]:
    """Read an update, and by name the vectors of the state after it.

    Raises DamagedError, also if this version cannot decode the update; UserError for an unreadable file.
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
    return [[vectors.to_bytes(vector_d)] for vector_d in state.values()]


def _vectors(state: Mapping[str, memoryview]) -> dict[str, Vector]:
    return {name: vectors.from_bytes([part], len(part) // limits.FLOAT_BYTES) for name, part in state.items()}
