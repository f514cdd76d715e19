"""Reads all that a run directory holds, and says what of it is damaged. Changes nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstale.errors import UserError
from unstale.journal import checkpoints, copy_detection, recorded_settings
from unstale.journal.crash_recovery import ENDED
from unstale.journal.database import Database
from unstale.journal.disk import DamagedError
from unstale.journal.rounds import damaged_estimates
from unstale.journal.rows import CheckpointRow
from unstale.journal.rundir import CONFIG, DATABASE, RunDirectory
from unstale.journal.segments import Segments

LISTED = 5  # damaged updates of one segment that are told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a run directory holds.

    Attributes:
        rows: Rows that were read, by table.
        files: Files that were read, by kind.
        bytes: Their sizes, by kind.
        updates: Updates whose numbers were read from segments.
        damages: Messages, each with the file, the damage and what to do.
        notes: What the next server will do with what is whole.
    """

    rows: Mapping[str, int]
    files: Mapping[str, int]
    bytes: Mapping[str, int]
    updates: int
    damages: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    """As `Verified`, while it is gathered."""

    rows: Mapping[str, int] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    damages: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def damaged(self, error: object) -> None:
        self.damages[str(error)] = None

    def read(self, kind: str, path: Path) -> None:
        with suppress(OSError):  # deleted by a server since
            self.bytes[kind] += path.stat().st_size
            self.files[kind] += 1


def verify(path: Path) -> Verified:
    """Read a whole run directory. A server may write to it meanwhile.

    Args:
        path: Of the directory.

    Returns:
        What was read, and every damage.

    Raises:
        UserError: It is no run directory, or the run has not begun.
    """
    found = _Found()
    if (path / DATABASE).exists():
        _verify_settings(path, found)
    else:
        RunDirectory.look(path)
    database = _opened(path / DATABASE, found)
    if database is not None:
        with closing(database):
            _verify_database(path, database, found)
    for part in sorted((path / "transfers").glob("*.part")):
        found.read("partial updates", part)
    return Verified(
        rows=found.rows,
        files=dict(found.files),
        bytes=dict(found.bytes),
        updates=found.updates,
        damages=tuple(found.damages),
        notes=tuple(found.notes),
    )


def _verify_settings(path: Path, found: _Found) -> None:
    config = path / CONFIG
    try:
        RunDirectory.look(path)
        text = recorded_settings.text_of(path / DATABASE)
        if text is not None and config.read_bytes() != text.encode():
            found.damaged(
                f"{config} was changed since the last server started, and has the same values of all keys that count; "
                "start `unstale server` on it to keep the change, or put the file back from a copy"
            )
    except (UserError, OSError) as error:
        found.damaged(error)
    found.read("settings", config)


def _opened(path: Path, found: _Found) -> Database | None:
    """The database, also where its end is missing; None where it cannot be read."""
    for takes_loss in (False, True):
        try:
            database = Database(path, read_only=True, takes_loss=takes_loss)
        except UserError as error:
            found.damaged(error)
        else:
            return database
    return None


def _verify_database(path: Path, database: Database, found: _Found) -> None:
    for file in (database.path, database.log, path / f"{DATABASE}-newest"):
        found.read("database", file)
    try:
        with database.snapshot():
            audit = database.audit()
        found.rows = audit.rows
        for damage in audit.damages:
            found.damaged(database.damaged(damage))
        segments = Segments(path / "segments")
        _compare(path, database, segments, found)
        _verify_segments(database, segments, found)
        _verify_checkpoints(path, database, found)
        _verify_compensations(path, database, found)
    except UserError as error:  # of the database: what hangs on damaged rows cannot be read
        if not found.damages:
            found.damaged(error)


def _compare(path: Path, database: Database, segments: Segments, found: _Found) -> None:
    if database.machine_restarted and database.meta(ENDED) != str(database.last_seq()):
        found.notes.append(
            f"the machine stopped while the server was running: {database.missing} events are known to be lost; the "
            "next server resumes without them, under another run id"
        )
    directory = RunDirectory.of_files(path)
    try:
        changed = copy_detection.check(directory, database, segments)
    except DamagedError as error:
        found.damaged(error)
    except UserError:  # a file is missing, which is told
        return
    else:
        if changed is not None:
            found.notes.append(f"the next server gives the run another id: {changed}")


def _verify_segments(database: Database, segments: Segments, found: _Found) -> None:
    for segment in segments.paths:
        found.read("segments", segment)
    damaged: Counter[int] = Counter()
    for update in database.updates_after(0):
        if update.place is None:
            continue
        found.updates += 1
        try:
            segments.read(update.place, memoryview(bytearray(update.place.size_bytes)))
        except UserError as error:
            number = update.place.segment
            if damaged[number] == 0 and number not in _named_now(database):
                continue  # a server has deleted it since
            damaged[number] += 1
            if damaged[number] <= LISTED:
                found.damaged(error)
    for number, count in damaged.items():
        if count > LISTED:
            found.damaged(f"{segments.path(number)}: {count} updates are damaged or missing in all")


def _named_now(database: Database) -> set[int]:
    """Segments that the database names by now."""
    with closing(Database(database.path, read_only=True, takes_loss=True)) as fresh:
        return set(fresh.segment_ends())


def _verify_checkpoints(path: Path, database: Database, found: _Found) -> None:
    for row in database.checkpoints():
        file = path / "checkpoints" / row.file
        found.read("checkpoints", file)
        try:
            state = checkpoints.read_at(file, row.seq)
        except UserError as error:
            if row in database.checkpoints():  # a server may have deleted it since
                found.damaged(error)
        else:
            _compare_waiting(database, row, state["coordinator"], found)


def _compare_waiting(
    database: Database, row: CheckpointRow, coordinator: Mapping[str, Any], found: _Found
) -> None:
    """The updates that waited for their round then, in a checkpoint and in the database."""
    then = {update["handle"] for update in (*coordinator["pending"], *(coordinator["making"] or ()))}
    rows = database.pending_at(row.seq, row.version)
    waiting = {update.handle for update in rows if update.handle is not None}
    for handle in sorted(then ^ waiting):
        does = "waits" if handle in waiting else "does not wait"
        damage = f"updates handle {handle} {does} for a round after version {row.version}"
        found.damaged(database.damaged(f"{damage}, which checkpoint {row.file} contradicts"))


def _verify_compensations(path: Path, database: Database, found: _Found) -> None:
    folder = path / "compensations"
    for file in sorted(folder.glob(f"*{checkpoints.SUFFIX}")):
        found.read("compensations", file)
    for damage in _damaged_compensations(database, folder):
        found.damaged(damage)


def _damaged_compensations(database: Database, folder: Path) -> Iterator[UserError]:
    """Those of versions that no checkpoint covers have to be there; others have to be whole where they are there."""
    covered = min((row.version for row in database.checkpoints()), default=0)
    for row in database.rounds():
        file = checkpoints.path_of(folder, row.version)
        if row.compensation is None or not row.compensation.is_kept:
            continue
        if row.version <= covered and not file.exists():
            continue
        try:
            checkpoints.read(file)
        except UserError:
            yield damaged_estimates(row.version, file)
