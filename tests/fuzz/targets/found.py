"""Files that a process reads from its disk: keys, the directory of a run, an outbox, with damage. Only a UserError
may be raised, and read values equal the stored ones."""

import json
import tempfile
import traceback
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import torch

from fuzz import disk, headers
from fuzz.choices import Choices
from fuzz.material import ONES
from support.wire import RUN
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale.journal.sequence_file import SequenceFile
from unstale.net.authorized_keys import AuthorizedKeys
from unstale_client.net import keys
from unstale_client.outbox import Outbox
from unstale_client.partial_files import PartialFiles
from unstale_proto import codec
from unstale_proto.limits import CLIENTS_MAX

Note = Callable[[Hashable], None]
T = TypeVar("T")

MEMORY = Path("/dev/shm")  # where there is one
DAMAGES_MAX = 3
BYTES_MAX = 4096  # of a file, unless it was longer before: repeats add nothing, and YAML parsing is slow


def run(data: bytes, note: Note) -> None:
    choices = Choices(data)
    target = choices.of((find_keys, find_config, find_database, find_segment, find_checkpoint, find_outbox))
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        target(Path(folder), choices, note)


def load(note: Note, name: str, read: Callable[[], T]) -> T | None:
    """The read value; None after a UserError. The place that raised it is the fact."""
    try:
        found = read()
    except UserError as error:
        wrong = error
    else:
        note((name, "read"))
        return found
    assert str(wrong)
    place = traceback.extract_tb(wrong.__traceback__, limit=-1)[0]
    note((name, type(wrong).__name__, place.name, place.lineno))
    return None


def put(folder: Path, files: Mapping[str, bytes], choices: Choices) -> str:
    """Write the files, one of them damaged; returns which."""
    damaged = choices.of(sorted(files))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(spoiled(content, choices) if name == damaged else content)
        path.chmod(0o600)
    return damaged


def spoiled(content: bytes, choices: Choices) -> bytes:
    """Damaged once or more; or replaced entirely; or empty."""
    kind = choices.number(16)
    if kind == 15:
        return choices.rest()
    most = max(len(content), BYTES_MAX)
    for _ in range(choices.number(DAMAGES_MAX + 1)):
        content = (headers.damaged if kind % 2 else disk.overwritten)(content, choices)[:most]
    return content


# --- key files ---


def find_keys(folder: Path, choices: Choices, note: Note) -> None:
    damaged = put(folder, disk.keys(), choices)
    setting = "server.keys"
    for name in ("server", "injector", "phone"):
        own = load(note, "identity", lambda name=name: keys.identity(folder / f"{name}.key_secret", setting))  # type: ignore[misc]
        if own is not None:
            assert all(len(key) == 40 for key in (own.public, own.secret, own.server or own.public))
    for name in ("server", "injector"):
        key = load(note, "public", lambda name=name: keys.public_key(folder / f"{name}.key", setting))  # type: ignore[misc]
        assert key is None or len(key) == 40
    load(note, "client", lambda: keys.client_identity(str(folder / "phone.key_secret"), None))
    authorized = load(note, "admitted", lambda: AuthorizedKeys(folder / "admitted"))
    if authorized is not None:
        for key, owner in authorized.owners.items():
            ids = [each for one in owner.clients.ranges for each in (one[0], one[-1])]
            assert len(key) == 40 and all(0 <= each < CLIENTS_MAX for each in ids)
            assert all(authorized.may_speak(key, each) for each in ids)
        (folder / damaged).unlink()
        authorized.refresh()
        assert all(len(key) == 40 for key in authorized.owners)


# --- the directory of a run ---


def find_config(folder: Path, choices: Choices, note: Note) -> None:
    put(folder, {"config.yaml": disk.CONFIG}, choices)
    (folder / "run.db").write_bytes(b"x")
    load(note, "look", lambda: RunDirectory.look(folder))
    opened = load(note, "open", lambda: RunDirectory.open(folder, Settings(seed=3)))
    if opened is not None:
        opened.close()


def find_database(folder: Path, choices: Choices, note: Note) -> None:
    """Every read row was stored; no event is missing in between. (Updates in a
    round have no checksum: a differing model reveals damage.)"""
    put(folder, disk.database(), choices)
    read_only = bool(choices.number(2))
    load(note, "newest", lambda: _newest(folder / "run.db-newest"))
    opened = load(note, "database", lambda: Database(folder / "run.db", read_only=read_only))
    if opened is None:
        return
    try:
        for name, rows in STORED.items():
            found = load(note, name, lambda name=name: READERS[name](opened))  # type: ignore[misc]
            assert found is None or all(row in rows for row in found), (name, found)
    finally:
        load(note, "close", opened.close)


def _newest(path: Path) -> int:
    opened = SequenceFile(path, read_only=True)
    try:
        return opened.get()
    finally:
        opened.close()


READERS: dict[str, Callable[[Database], list[Any]]] = {
    "meta": lambda database: [known for known in [database.meta("run_id")] if known is not None],
    "events": lambda database: list(database.events_after(0)),
    "rounds": lambda database: [row._replace(members=()) for row in database.rounds()],
    "evaluations": lambda database: list(database.evaluations()),
    "checkpoints": lambda database: list(database.checkpoints()),
    "pending": lambda database: list(database.pending()),
}


def _stored() -> dict[str, list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in disk.database().items():
            (Path(folder) / name).write_bytes(content)
        opened = Database(Path(folder) / "run.db", read_only=True)
        rows = {name: read(opened) for name, read in READERS.items()}
        opened.close()
        return rows


STORED = _stored()


def find_segment(folder: Path, choices: Choices, note: Note) -> None:
    """A row equals the appended one, or is reported as damaged."""
    put(folder, disk.segments(), choices)
    for place in [update.location for update in STORED["pending"]]:
        into = bytearray(place.size_bytes)
        opened = load(note, "segments", lambda: Segments(folder))
        if opened is None:
            return
        read = load(note, "row", lambda: opened.read(place, memoryview(into)) or True)  # noqa: B023
        assert not read or into == disk.ROW
        if load(note, "cut", lambda: opened.cut({1: place.offset + place.size_bytes}) or True):  # noqa: B023
            again = opened.append(memoryview(disk.ROW))
            opened.read(again, memoryview(into))
            assert into == disk.ROW
        opened.close()


def find_checkpoint(folder: Path, choices: Choices, note: Note) -> None:
    """A checkpoint equals the written one, or is reported as damaged."""
    put(folder, disk.checkpoint_file(), choices)
    found = load(note, "checkpoint", lambda: checkpoints.read(folder / "00000001.safetensors"))
    if found is not None:
        state, about = found
        assert about == disk.ABOUT and torch.equal(state["learner"]["sent"], disk.STATE["learner"]["sent"]), state


# --- an outbox ---


def find_outbox(folder: Path, choices: Choices, note: Note) -> None:
    """Damaged, or with a new checksum, as from another version."""
    is_sealed = bool(choices.number(2))
    if is_sealed:
        put_sealed(folder, choices)
    else:
        put(folder, disk.outbox(), choices)
    opened = Outbox(folder, 0, 2, durable=False)
    try:
        found = load(note, "load", opened.load) or {}
        for waiting in found.values():
            for made in waiting:
                assert sum(map(len, made.parcel)) == made.update.payload_bytes
                assert is_sealed or b"".join(made.parcel) == ONES
        kept = load(note, "restore", lambda: list(opened.restore(RUN))) or []
        note(("found", len(found.get(0, ())), tuple((len(state), len(pending)) for _, state, pending in kept)))
        for made in found.get(0, []):
            opened.drop(0, made.run_id, made.number)
        load(note, "clear", lambda: opened.clear(0, RUN))
    finally:
        opened.close()
    load(note, "parts", lambda: PartialFiles(folder, suffix=".model"))


def put_sealed(folder: Path, choices: Choices) -> None:
    header = codec.encode(disk.UPDATE)
    facts: dict[str, Any] = {"run_id": RUN, "keeps": ["control_d"]}
    if choices.number(2):
        name, body = "0.state", ONES
        facts |= {"settled": [7], "parts": [len(body)]}
    else:
        name = "0-7.update"
        header = headers.changed(msgpack.unpackb(header), choices)
        body = header + ONES + ONES
        facts |= {"number": 7, "parts": [len(header), len(ONES), len(ONES)]}
    kind = choices.number(4)
    if kind == 1:
        body = headers.damaged(body, choices)
    about: Any = facts
    if kind == 2:
        about = headers.damaged(json.dumps(facts).encode(), choices)
    elif kind == 3:
        key = choices.of(sorted(facts))
        about = {**facts, key: choices.of(VALUES)}
    (folder / name).write_bytes(disk.sealed(about, body))


VALUES: tuple[Any, ...] = (
    None, -1, 0, 7, 2**31, 2**64, 1.5, "", "x", RUN, [], [0], [-1], [8, 8], [4, 4, 8], [2**70], ["control_d"] * 2,
    ["a", "b"], {}, {"x": 1}, True, [[]], [None], "\x00", "\ud800",
)  # fmt: skip
