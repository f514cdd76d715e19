"""What the clients of a process must not lose when it dies: updates that are not acknowledged, and what is kept of
those that are. Nothing here is sent, trained or decided.

    CLIENT-NUMBER.update    an update, from before it is first sent until its ack. NUMBER: of its task, as in `task`
    CLIENT.state            what the client keeps from accepted updates, for trainings that keep something, and for
                            encodings that leave something out
    lock                    which clients have a process here
    starts                  how many processes have started here (`client.process_start`)

An accepted update may change what its client keeps (SCAFFOLD's c_i, MOON's last model), and that must happen exactly
once, wherever the process is killed. So what an update would leave behind lies in the update's own file, and an `ack`
that says `accepted` does, in this order:

    1. writes CLIENT.state anew: what is kept now, and the numbers of the updates that went into it last;
    2. deletes CLIENT-NUMBER.update.

Killed before 1: the update is there, is sent again, and the server repeats its first verdict, `accepted`. Between 1 and
2: the state names the update, which is then deleted when the process starts again. So it is neither lost nor counted
twice. Where 1 fails, 2 is left out: the file stays until a state that holds it is stored. A rejected update is deleted,
and should that be lost, is sent again and rejected again.

What cannot be stored, because the disk is full perhaps, is kept in memory and sent all the same, with one warning.
Waiting for room would stop a client that can learn; and no promise is broken: the update is not acknowledged yet, so
that if the process dies, too, the server takes the task back and gives another.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from unstale import flat
from unstale.client import atomic_file, process_start
from unstale.client.actions import PendingUpdate
from unstale.client.atomic_file import Facts, Record
from unstale.errors import UserError
from unstale.journal.disk import NOFOLLOW, DamagedError, private_folder, trouble
from unstale_proto import codec, limits, payload
from unstale_proto.errors import RemoteContractError
from unstale_proto.messages import ProcessStart, Update

log = logging.getLogger("unstale.client")

State = Mapping[str, Tensor]
"""What a client keeps, or would keep from one update, by name: vectors of float32 on the host."""

_NAME = re.compile(r"(\d+)(?:-(\d+)\.update|\.state)(\.tmp)?", re.ASCII)
# Successful writes in a row after which a full disk counts as free again: it may have room for small files only.
_CALM_WRITES = 100
_SETTLED_MAX = limits.HOLDING_MAX  # more than a client can have waiting


class _OfState(Facts):
    """settled: numbers of the updates that went into it last. keeps: names of what is kept, each a part."""

    run_id: str
    settled: tuple[int, ...]
    keeps: tuple[str, ...]


class _OfUpdate(Facts):
    """Parts: header, payload, and what would be kept, by these names."""

    run_id: str
    number: int
    keeps: tuple[str, ...]


class _Held(NamedTuple):
    """An update in a file. keeps: whether its client is to keep something from it."""

    run_id: str
    keeps: bool


class Outbox:
    """The files of clients `first` to `first + count - 1` in a folder that others may share. One thread at a time.

    durable: what is stored survives the machine's end, too, and not only the process's. Raises UserError when the
    folder cannot be had, or another process has one of these clients there.
    """

    def __init__(self, folder: Path, first: int, count: int, *, durable: bool) -> None:
        self.folder = folder
        self._clients = range(first, first + count)
        self._durable = durable
        self._held: dict[tuple[int, int], _Held] = {}
        self._states: set[int] = set()
        self._settled: dict[int, list[int]] = {}
        self._is_short = False  # of room, or of whatever else keeps files from being stored
        self._stored_since = 0  # files in a row that were stored while it is
        try:
            private_folder(folder)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
        except OSError as error:
            raise trouble("use client.directory", folder, error) from None
        self._take_clients()

    def _take_clients(self) -> None:
        """Lock the bytes of the lock file at these clients' ids; the system unlocks them when the process is gone."""
        if sys.platform == "win32":
            return  # has no such locks
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
        """Leave these clients to others. What is stored stays."""
        os.close(self._lock)

    # --- when the process starts ---

    def next_start(self) -> ProcessStart:
        """Count this process among those that have started here. Called once."""
        return process_start.next_start(self.folder, self._lock)

    def load(self) -> dict[int, list[PendingUpdate]]:
        """The updates that these clients have waiting, oldest first: for a client at most as many as it may hold.

        What is damaged is deleted, with a warning. Raises UserError for a file that cannot be read.
        """
        return {
            client_id: self._load_client(client_id, [number for _, number in of_client])
            for client_id, of_client in groupby(sorted(self._list()), key=lambda update: update[0])
        }

    def _list(self) -> Iterator[tuple[int, int]]:
        """Client and number of each update there. Notes whose state is there; deletes what was never whole."""
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise trouble("read client.directory", self.folder, error) from None
        for name in names:
            found = _NAME.fullmatch(name)
            if found is None or (client_id := int(found[1])) not in self._clients:
                continue
            if found[3]:
                self._delete(self.folder / name)
            elif found[2]:
                yield client_id, int(found[2])
            else:
                self._states.add(client_id)

    def _load_client(self, client_id: int, numbers: Sequence[int]) -> list[PendingUpdate]:
        state = self._read_state(client_id)
        waiting = []
        for number in numbers:
            path = self._update_path(client_id, number)
            try:
                pending, kept = _read_update(path, number)
            except DamagedError as error:
                self._delete_damaged(path, error)
                continue
            self._held[client_id, number] = _Held(pending.run_id, bool(kept))
            if state is not None and _is_settled(state, pending):
                self.let_go(client_id, pending.run_id, number)
            else:
                waiting.append(pending)
        for pending in waiting[: -limits.HOLDING_MAX + 1]:
            self.let_go(client_id, pending.run_id, pending.number)
        return waiting[-limits.HOLDING_MAX + 1 :]

    def restore(self, run_id: str) -> Iterator[tuple[int, State, dict[int, State]]]:
        """Begin with a run: each client that has something from before, what it keeps, and by number of its task what
        it would keep from the updates that wait. What was kept in another run is deleted."""
        pending: dict[int, dict[int, State]] = {}
        for (client_id, number), held in sorted(self._held.items()):
            if held.keeps and held.run_id == run_id:
                _, kept = _read_update(self._update_path(client_id, number), number)
                pending.setdefault(client_id, {})[number] = _tensors(kept)
        self._settled.clear()
        for client_id in sorted({*self._states, *pending}):
            yield client_id, self._state_of(client_id, run_id), pending.get(client_id, {})

    def _state_of(self, client_id: int, run_id: str) -> State:
        found = self._read_state(client_id)
        if found is None:
            return {}
        if found.facts.run_id != run_id:
            self._delete_state(client_id)
            return {}
        self._settled[client_id] = list(found.facts.settled)
        return _tensors(dict(zip(found.facts.keeps, found.parts, strict=True)))

    # --- while it runs ---

    def put(self, client_id: int, pending: PendingUpdate, state: State) -> PendingUpdate:
        """Store an update before it is sent. state: what the client is to keep from it, if it is accepted.

        The same update, whose bytes now lie in the file if they are many: they are not held twice.
        """
        path = self._update_path(client_id, pending.number)
        facts = {"run_id": pending.run_id, "number": pending.number, "keeps": list(state)}
        header = codec.encode(pending.update)
        if not self._write(path, facts, [[header], pending.parcel, *_frames(state)]):
            return pending
        self._held[client_id, pending.number] = _Held(pending.run_id, bool(state))
        if pending.update.payload_bytes < atomic_file.MAPPED_BYTES:
            return pending
        try:
            return replace(pending, parcel=_read_update(path, pending.number)[0].parcel)
        except UserError as error:
            log.warning("%s, though it was just written", error)
            return pending

    def waits_for_state(self, client_id: int, run_id: str, number: int) -> bool:
        """Whether there is an update whose client is to keep something from it, if it is accepted."""
        return self._held.get((client_id, number)) == _Held(run_id, keeps=True)

    def keep(self, client_id: int, run_id: str, number: int, state: State) -> None:
        """An update was accepted, and with it its client keeps this now."""
        settled = [*self._settled.get(client_id, ()), number][-_SETTLED_MAX:]
        self._settled[client_id] = settled
        facts = {"run_id": run_id, "settled": settled, "keeps": list(state)}
        if self._write(self._state_path(client_id), facts, _frames(state)):
            self._states.add(client_id)
            for one in settled:
                self.let_go(client_id, run_id, one)

    def let_go(self, client_id: int, run_id: str, number: int) -> None:
        """An update is settled: it will not be sent again. Of another run's nothing is touched."""
        held = self._held.get((client_id, number))
        if held is not None and held.run_id == run_id:
            del self._held[client_id, number]
            self._delete(self._update_path(client_id, number))

    def clear(self, client_id: int, run_id: str) -> None:
        """The run is over: nothing of it is needed any more."""
        for one, number in list(self._held):
            if one == client_id:
                self.let_go(client_id, run_id, number)
        state = self._read_state(client_id)
        if state is not None and state.facts.run_id == run_id:
            self._delete_state(client_id)

    # --- files ---

    def _update_path(self, client_id: int, number: int) -> Path:
        return self.folder / f"{client_id}-{number}.update"

    def _state_path(self, client_id: int) -> Path:
        return self.folder / f"{client_id}.state"

    def _read_state(self, client_id: int) -> Record[_OfState] | None:
        """None where there is none, or where it was damaged."""
        if client_id not in self._states:
            return None
        path = self._state_path(client_id)
        try:
            found = atomic_file.read(path, _OfState)
            if not _are_vectors(found.facts.keeps, found.parts):
                raise atomic_file.damaged(path)
            return found
        except DamagedError as error:
            self._states.discard(client_id)
            self._delete_damaged(path, error)
            return None

    def _delete_damaged(self, path: Path, error: DamagedError) -> None:
        log.warning("%s, and is deleted; its client goes on without it", error)
        self._delete(path)

    def _write(
        self, path: Path, facts: Mapping[str, Any], parts: Sequence[Sequence[bytes | memoryview]]
    ) -> bool:
        """Whether it could be stored. One line is logged when that begins to fail, and one when it works again."""
        try:
            atomic_file.write(path, facts, parts, durable=self._durable)
        except OSError as error:
            self._stored_since = 0
            if not self._is_short:
                self._is_short = True
                log.warning(
                    "%s; meanwhile what clients make is kept in memory, and lost if this process dies",
                    trouble("write", path, error),
                )
            return False
        if self._is_short:
            self._stored_since += 1
            if self._stored_since == _CALM_WRITES:
                self._is_short, self._stored_since = False, 0
                log.info("%s: what clients make is stored again", self.folder)
        return True

    def _delete_state(self, client_id: int) -> None:
        self._states.discard(client_id)
        self._settled.pop(client_id, None)
        self._delete(self._state_path(client_id))

    def _delete(self, path: Path) -> None:
        with suppress(OSError):  # it is sent again after the next start, and told that it was counted before
            path.unlink()


def _read_update(path: Path, number: int) -> tuple[PendingUpdate, Mapping[str, memoryview]]:
    """The update in a file, and by name what its client would keep. Raises DamagedError, also for one that this version
    cannot read; UserError when the file cannot be read."""
    found = atomic_file.read(path, _OfUpdate)
    facts, kept = found.facts, found.parts[2:]
    if facts.number != number or len(found.parts) < 2 or not _are_vectors(facts.keeps, kept):
        raise atomic_file.damaged(path)
    header, body = found.parts[:2]
    try:
        update = codec.decode(header)
    except RemoteContractError as error:
        raise DamagedError(
            f"a stored update of run {facts.run_id} cannot be read by this version ({error})"
        ) from None
    if not isinstance(update, Update) or len(body) != update.payload_bytes:
        raise atomic_file.damaged(path)
    pending = PendingUpdate(run_id=facts.run_id, number=number, update=update, parcel=payload.split(body))
    return pending, dict(zip(facts.keeps, kept, strict=True))


def _are_vectors(names: Sequence[str], parts: Sequence[memoryview]) -> bool:
    return len(set(names)) == len(names) == len(parts) and all(
        len(part) % limits.FLOAT_BYTES == 0 for part in parts
    )


def _is_settled(state: Record[_OfState], pending: PendingUpdate) -> bool:
    return state.facts.run_id == pending.run_id and pending.number in state.facts.settled


def _frames(state: State) -> list[list[memoryview]]:
    return [[flat.to_bytes(tensor)] for tensor in state.values()]


def _tensors(kept: Mapping[str, memoryview]) -> dict[str, Tensor]:
    """The vectors of a file."""
    return {name: flat.from_bytes([part], len(part) // limits.FLOAT_BYTES) for name, part in kept.items()}
