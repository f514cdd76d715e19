"""Rolls a run back to an earlier version."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unstale.config import build
from unstale.config.compensation import compensator
from unstale.config.settings import Settings
from unstale.coordinator import snapshot
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.journal import checkpoints, resumption
from unstale.journal.database import SYNCED, Database
from unstale.journal.journal import Journal
from unstale.journal.recovery import Recovery
from unstale.journal.restore import give_new_id
from unstale.journal.resumption import RUN_ID
from unstale.journal.rows import CheckpointRow
from unstale.journal.rundir import SET_ASIDE, RunDirectory
from unstale_client.disk import DamagedError, sync_folder, user_errors
from unstale_client.net.clock import now_s

DROPPED = "rolled-back"  # reason of an update that was pending at a rollback

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """Result of `roll_back`."""

    version: int  # from which the run resumes
    former_version: int  # the newest before
    run_id: str
    former_run_id: str | None
    updates: int  # accepted ones that are no longer used
    excluded: tuple[int, ...]  # ids of all excluded clients
    copy: Path  # of the run directory before the rollback


def roll_back(
    path: Path, version: int | None, *, without: Collection[int] = (), readmit: Collection[int] = ()
) -> RolledBack:
    """Roll a run back to a version, from which the next server resumes under another run id.

    Model and policy are restored, updates that were pending at that version are dropped, and clients gather again.
    A copy of the directory is stored below `set-aside`. version: None for the newest. without, readmit: ids of clients.

    Raises UserError where it is not a run directory, is in use or damaged, or the version cannot be computed; the run
    has not changed then.
    """
    with ExitStack() as stack:
        directory = RunDirectory.take(path)
        stack.callback(directory.close)
        settings = directory.settings
        journal = Journal(directory, settings.run, clock=now_s)
        stack.pop_all()
        stack.callback(journal.close)
        database = journal.database
        excluded = _excluded(settings, resumption.excluded(database), without, readmit)
        last = journal.last_version()
        version = last if version is None else version
        seq, state = _state_of(journal, settings, version, last)
        return _go_back(journal, version, seq, state, excluded)


def _excluded(
    settings: Settings, before: frozenset[int], without: Collection[int], readmit: Collection[int]
) -> frozenset[int]:
    for option, client_ids in (("--without", without), ("--readmit", readmit)):
        for client_id in client_ids:
            if not 0 <= client_id < settings.clients:
                raise UserError(f"{option} is {client_id}, expected the id of a client, 0 to {settings.clients - 1}")
    both = {*without} & {*readmit}
    if both:
        raise UserError(f"client {min(both)} is named by --without and --readmit, expected one of them")
    after = (before | {*without}) - {*readmit}
    if len(after) == settings.clients:
        raise UserError(
            f"--without excludes all {settings.clients} clients of the run, expected at least one that takes part"
        )
    return after


def _state_of(journal: Journal, settings: Settings, version: int, last: int) -> tuple[int, State]:
    """Last event of a version, and the state then, from its checkpoint or computed from earlier data."""
    database = journal.database
    for row in database.checkpoints():
        if row.version == version and version > 0:
            with suppress(DamagedError):
                state, _ = checkpoints.read(journal.directory.checkpoints / row.file)
                return row.seq, _without_clients(settings, state["learner"], state["coordinator"])
    seq = 0 if version == 0 else None
    if version > 0 and resumption.first_computable(database) <= version <= last:
        seq = database.seq_of(version)
    if seq is None:
        raise UserError(
            f"--to is {version}, expected a version that can be computed from the stored data: "
            f"{resumption.possible_versions(database, last)}"
        )
    return seq, _computed(journal, settings, seq)


def _computed(journal: Journal, settings: Settings, seq: int) -> State:
    """The state after an event, computed again."""
    parts = build.run_components(settings, partial(compensator, clock=now_s))
    learner = parts.learner
    coordinator_settings = replace(parts.coordinator, excluded=resumption.excluded(journal.database))
    coordinator = Coordinator(coordinator_settings)
    if seq > 0:
        staging = (
            journal.spill(learner.row_numbers)
            if learner.column_wise
            else build.staging(coordinator_settings, learner.row_numbers, parts.workspace.device)
        )
        Recovery(
            journal,
            coordinator=coordinator,
            learner=learner,
            staging=staging,
            evaluate=build.evaluation(parts.workspace),
        ).run_to(seq)
    return _without_clients(settings, learner.state_dict(), snapshot.taken(coordinator))


def _without_clients(settings: Settings, learner: State, coordinator: dict[str, Any]) -> State:
    stale_rounds_max = build.coordinator_settings(settings).stale_rounds_max
    return {"learner": learner, "coordinator": snapshot.without_clients(coordinator, stale_rounds_max)}


def _go_back(journal: Journal, version: int, seq: int, state: State, excluded: frozenset[int]) -> RolledBack:
    directory, database = journal.directory, journal.database
    former, former_version = database.meta(RUN_ID) or None, journal.last_version()
    accepted = _accepted(database)
    # A new file name: a checkpoint that the database names must stay. Leading zeros do not change the version.
    path = checkpoints.path_of(directory.checkpoints, version)
    while path.exists():
        path = path.with_name(f"0{path.name}")
    written = checkpoints.write(directory.checkpoints, version, state, {"seq": seq}, path)
    try:
        copy = _set_copy_aside(directory, database, written.path)
    except BaseException:
        written.path.unlink(missing_ok=True)
        raise
    row = CheckpointRow(version, seq, written.path.name, written.size_bytes, at_s=state["coordinator"]["now_s"])
    pending = [
        update._replace(outcome="rejected", reason=DROPPED, handle=None, location=None)
        for update in database.pending_at(seq, version)
    ]
    facts = {
        RUN_ID: "",
        SYNCED: str(seq),
        resumption.GIVEN_UP: "",
        resumption.ROLLED_BACK: str(version),
        resumption.EXCLUDED: json.dumps(sorted(excluded)),
    }
    database.rewind(row, pending, facts)
    _delete_newer(directory, {row.file for row in database.checkpoints()}, version)
    return RolledBack(
        version=version,
        former_version=former_version,
        run_id=give_new_id(directory, database),
        former_run_id=former,
        updates=accepted - _accepted(database),
        excluded=tuple(sorted(excluded)),
        copy=copy,
    )


def _accepted(database: Database) -> int:
    counts = database.conservation()
    return counts.aggregated + counts.pending


def _delete_newer(directory: RunDirectory, named: Collection[str], version: int) -> None:
    """Delete checkpoints that the database does not name, and estimates of later versions."""
    with user_errors("delete from", directory.path):
        for path in checkpoints.files(directory.checkpoints):
            if path.name not in named:
                path.unlink()
        for path in checkpoints.files(directory.compensations):
            if checkpoints.version_of(path) > version:
                path.unlink()


# --- the copy ---


def _set_copy_aside(directory: RunDirectory, database: Database, new: Path) -> Path:
    """Copy a run directory, except the checkpoint `new`, to a folder below `set-aside`."""
    base = directory.path / SET_ASIDE
    with ExitStack() as stack, user_errors("copy the run to", base):
        base.mkdir(mode=0o700, exist_ok=True)
        number = resumption.next_number(base)
        part = base / f".{number}.part"
        shutil.rmtree(part, ignore_errors=True)
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        part.mkdir(mode=0o700)
        shutil.copyfile(directory.config, part / directory.config.name)
        database.copy_to(part / directory.database.name)
        _copy_folder(directory.segments, part)
        for folder in (directory.checkpoints, directory.compensations):
            _copy_folder(folder, part, may_link=True, excluded=new)
        newest = directory.database.with_name(f"{directory.database.name}-newest")
        shutil.copyfile(newest, part / newest.name)
        _sync(part)
        copy = part.rename(base / str(number))
        stack.callback(shutil.rmtree, copy, ignore_errors=True)
        sync_folder(base)
        stack.pop_all()
    return copy


def _sync(folder: Path) -> None:
    """Make a folder and all below it durable."""
    for path in folder.iterdir():
        if path.is_dir():
            _sync(path)
        else:
            with path.open("rb") as opened:
                os.fchmod(opened.fileno(), 0o600)
                os.fsync(opened.fileno())
    sync_folder(folder)


def _copy_folder(folder: Path, to: Path, *, may_link: bool = False, excluded: Path | None = None) -> None:
    """Copy the files of a folder. may_link: the files are never changed, only replaced and deleted."""
    target = to / folder.name
    target.mkdir(mode=0o700)
    for path in sorted(folder.iterdir()):
        if path == excluded or not path.is_file():
            continue
        if may_link:
            with suppress(OSError):
                os.link(path, target / path.name)
                continue
        shutil.copyfile(path, target / path.name)
