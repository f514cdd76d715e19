"""Reads all files of a run directory and lists damages. Changes nothing."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstale.errors import UserError
from unstale.journal import checkpoints, resumption
from unstale.journal.database import Database
from unstale.journal.rounds import damaged_estimates
from unstale.journal.rows import CheckpointRow
from unstale.journal.rundir import CONFIG, DATABASE, RunDirectory, recorded_text
from unstale.journal.segments import Segments
from unstale_client.disk import DamagedError

LISTED = 5  # damaged updates listed per segment


@dataclass(slots=True)
class Verified:
    """Content of a run directory."""

    rows: Mapping[str, int] = field(default_factory=dict)  # by table
    files: dict[str, int] = field(default_factory=dict)  # by kind
    bytes: dict[str, int] = field(default_factory=dict)  # by kind
    updates: int = 0  # in segments
    damages: list[str] = field(default_factory=list)  # messages with the file, the damage and the remedy
    notes: list[str] = field(default_factory=list)  # actions of the next server on intact files

    def damaged(self, error: object) -> None:
        """Add a damage."""
        if str(error) not in self.damages:
            self.damages.append(str(error))

    def read(self, kind: str, path: Path) -> None:
        """Count a file."""
        with suppress(OSError):  # deleted by a server meanwhile
            self.bytes[kind] = self.bytes.get(kind, 0) + path.stat().st_size
            self.files[kind] = self.files.get(kind, 0) + 1


def verify(path: Path) -> Verified:
    """Read a whole run directory, to which a server may write meanwhile.

    Raises UserError if it is not a run directory, or the run has not begun.
    """
    result = Verified()
    if (path / DATABASE).exists():
        _verify_settings(path, result)
    else:
        RunDirectory.look(path)
    database = _opened(path / DATABASE, result)
    if database is not None:
        with closing(database):
            _verify_database(path, database, result)
    for part in sorted((path / "transfers").glob("*.part")):
        result.read("partial updates", part)
    return result


def _verify_settings(path: Path, result: Verified) -> None:
    config = path / CONFIG
    try:
        RunDirectory.look(path)
        text = recorded_text(path / DATABASE)
        if text is not None and config.read_bytes() != text.encode():
            result.damaged(
                f"{config} was changed since the last server started, with the same values of all keys that matter; "
                "start `unstale server` on it to keep the change, or put the file back from a copy"
            )
    except (UserError, OSError) as error:
        result.damaged(error)
    result.read("settings", config)


def _opened(path: Path, result: Verified) -> Database | None:
    """The database, even where its end is lost; None where it cannot be read."""
    for takes_loss in (False, True):
        try:
            return Database(path, read_only=True, takes_loss=takes_loss)
        except UserError as error:
            result.damaged(error)
    return None


def _verify_database(path: Path, database: Database, result: Verified) -> None:
    for file in (database.path, database.log, path / f"{DATABASE}-newest"):
        result.read("database", file)
    try:
        with database.snapshot():
            audit = database.audit()
        result.rows = audit.rows
        for damage in audit.damages:
            result.damaged(database.damaged(damage))
        segments = Segments(path / "segments")
        _compare(path, database, segments, result)
        _verify_segments(database, segments, result)
        _verify_checkpoints(path, database, result)
        _verify_compensations(path, database, result)
    except UserError as error:  # of the database, after damaged rows
        if not result.damages:
            result.damaged(error)


def _compare(path: Path, database: Database, segments: Segments, result: Verified) -> None:
    if database.machine_restarted and database.meta(resumption.ENDED) != str(database.last_seq()):
        result.notes.append(
            f"the machine stopped while the server was running: {database.missing} events are known to be lost; the "
            "next server resumes without them, under another run id"
        )
    directory = RunDirectory.of_files(path)
    try:
        changed = resumption.check_is_no_copy(directory, database, segments)
    except DamagedError as error:
        result.damaged(error)
    except UserError:  # a file is missing, which is a damage already
        return
    else:
        if changed is not None:
            result.notes.append(f"the next server gives the run another id: {changed}")


def _verify_segments(database: Database, segments: Segments, result: Verified) -> None:
    for segment in segments.paths:
        result.read("segments", segment)
    damaged: Counter[int] = Counter()
    for update in database.updates_after(0):
        if update.location is None:
            continue
        result.updates += 1
        try:
            segments.check(update.location)
        except UserError as error:
            number = update.location.segment
            if damaged[number] == 0 and number not in _named_now(database):
                continue  # a server has deleted it
            damaged[number] += 1
            if damaged[number] <= LISTED:
                result.damaged(error)
    for number, count in damaged.items():
        if count > LISTED:
            result.damaged(f"{segments.path(number)}: {count} updates are damaged or missing in all")


def _named_now(database: Database) -> set[int]:
    """Segments that the database names now."""
    with closing(Database(database.path, read_only=True, takes_loss=True)) as fresh:
        return set(fresh.segment_ends())


def _verify_checkpoints(path: Path, database: Database, result: Verified) -> None:
    for row in database.checkpoints():
        file = path / "checkpoints" / row.file
        result.read("checkpoints", file)
        try:
            state, seq = checkpoints.read_at(file, row.seq, database.last_seq())
        except UserError as error:
            if row in database.checkpoints():  # or a server has deleted it
                result.damaged(error)
        else:
            _compare_pending(database, row._replace(seq=seq), state["coordinator"], result)


def _compare_pending(database: Database, row: CheckpointRow, coordinator: Mapping[str, Any], result: Verified) -> None:
    """Compare the pending updates of a checkpoint with the database."""
    in_checkpoint = {update["handle"] for update in (*coordinator["pending"], *(coordinator["making"] or ()))}
    rows = database.pending_at(row.seq, row.version)
    pending = {update.handle for update in rows if update.handle is not None}
    for handle in sorted(in_checkpoint ^ pending):
        waits = "waits" if handle in pending else "does not wait"
        damage = f"updates handle {handle} {waits} for a round after version {row.version}"
        result.damaged(database.damaged(f"{damage}, which checkpoint {row.file} contradicts"))


def _verify_compensations(path: Path, database: Database, result: Verified) -> None:
    """Estimates of versions that no checkpoint covers must exist; others must be intact if they exist."""
    folder = path / "compensations"
    for file in checkpoints.files(folder):
        result.read("compensations", file)
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
            result.damaged(damaged_estimates(row.version, file))
