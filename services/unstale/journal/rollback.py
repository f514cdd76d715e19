"""Takes a run back to an earlier version, without what was accepted since."""

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
from unstale.journal import checkpoints, copy_detection, resumption
from unstale.journal.crash_recovery import RUN_ID
from unstale.journal.database import SYNCED
from unstale.journal.disk import DamagedError, sync_folder, trouble
from unstale.journal.journal import Journal
from unstale.journal.recovery import Recovery
from unstale.journal.restore import give_new_id
from unstale.journal.rewindable_database import RewindableDatabase
from unstale.journal.rows import CheckpointRow
from unstale.journal.rundir import SET_ASIDE, RunDirectory
from unstale.net.clock import now_s

DROPPED = "rolled-back"  # reason of an update that waited for its round when the run was rolled back

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """What `roll_back` did.

    Attributes:
        version: From which the run resumes.
        former_version: Newest version before.
        run_id: Id of the run from now on.
        former_run_id: Id before, None where the run had none.
        updates: Accepted updates that are not used any more.
        excluded: Ids of all clients that may not take part.
        copy: Directory of the run as it was before.
    """

    version: int
    former_version: int
    run_id: str
    former_run_id: str | None
    updates: int
    excluded: tuple[int, ...]
    copy: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where the run goes back to. seq: of the last event that is kept. checkpoint: of that version, if there is one."""

    version: int
    seq: int
    checkpoint: CheckpointRow | None


def roll_back(
    path: Path,
    version: int | None,
    *,
    without: Collection[int] = (),
    readmit: Collection[int] = (),
) -> RolledBack:
    """Take a run back to a version, so that the next server resumes from there under another run id.

    The model and the policy are as they were at that version. Updates that waited for their round then are dropped,
    and clients gather again as at the beginning of a run. The directory as it was is kept below `set-aside`.

    Args:
        path: Of the run directory; no server runs on it.
        version: To go back to, None for the newest.
        without: Ids of clients that may not take part from now on.
        readmit: Ids of clients that may take part again.

    Returns:
        What was done.

    Raises:
        UserError: It is no run directory, is in use or damaged, or the version cannot be had: then the run is as it
            was.
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
        target = _target(directory, database, last if version is None else version, last)
        state = _state_at(journal, settings, target)
        return _go_back(journal, target, state, excluded)


def _excluded(
    settings: Settings, before: frozenset[int], without: Collection[int], readmit: Collection[int]
) -> frozenset[int]:
    for option, client_ids in (("--without", without), ("--readmit", readmit)):
        for client_id in client_ids:
            if not 0 <= client_id < settings.clients:
                raise UserError(
                    f"{option} is {client_id}, expected the id of a client, 0 to {settings.clients - 1}"
                )
    both = {*without} & {*readmit}
    if both:
        raise UserError(f"client {min(both)} is named by --without and --readmit, expected one of them")
    after = (before | {*without}) - {*readmit}
    if len(after) == settings.clients:
        raise UserError(
            f"--without excludes all {settings.clients} clients of the run, expected at least one that takes part"
        )
    return after


def _target(directory: RunDirectory, database: RewindableDatabase, version: int, last: int) -> _Target:
    if version == 0:
        return _Target(version=0, seq=0, checkpoint=None)
    checkpoint = _whole_checkpoint(directory, database, version)
    if checkpoint is not None:
        return _Target(version=version, seq=checkpoint.seq, checkpoint=checkpoint)
    if resumption.first_computable(database) <= version <= last:
        seq = database.seq_of(version)
        if seq is not None:
            return _Target(version=version, seq=seq, checkpoint=None)
    raise UserError(
        f"--to is {version}, expected a version that can be computed from what the run keeps: "
        f"{resumption.possible_versions(database, last)}"
    )


def _whole_checkpoint(
    directory: RunDirectory, database: RewindableDatabase, version: int
) -> CheckpointRow | None:
    for row in database.checkpoints():
        if row.version == version:
            with suppress(DamagedError):
                checkpoints.read(directory.checkpoints / row.file)
                return row
    return None


def _state_at(journal: Journal, settings: Settings, target: _Target) -> State:
    """States of learner and coordinator, read from the checkpoint or computed from what lies before."""
    told = build.coordinator_settings(settings)
    if target.checkpoint is not None:
        state, _ = checkpoints.read(journal.directory.checkpoints / target.checkpoint.file)
        learner, coordinator = state["learner"], state["coordinator"]
    else:
        learner, coordinator = _computed(journal, settings, target)
    return {
        "learner": learner,
        "coordinator": snapshot.without_clients(coordinator, told.stale_rounds_max),
    }


def _computed(journal: Journal, settings: Settings, target: _Target) -> tuple[State, State]:
    parts = build.run_components(settings, partial(compensator, clock=now_s))
    learner = parts.learner
    told = replace(parts.coordinator, excluded=resumption.excluded(journal.database))
    coordinator = Coordinator(told)
    if target.seq > 0:
        staging = (
            journal.spill(learner.row_numbers)
            if learner.column_wise
            else build.staging(told, learner.row_numbers, parts.device)
        )
        Recovery(
            journal,
            coordinator=coordinator,
            learner=learner,
            staging=staging,
            evaluate=build.evaluation(settings, parts.model, parts.dataset, parts.device),
        ).run_to(target.seq)
    return learner.state_dict(), snapshot.taken(coordinator)


def _go_back(journal: Journal, target: _Target, state: State, excluded: frozenset[int]) -> RolledBack:
    directory, database = journal.directory, journal.database
    former, former_version = database.meta(RUN_ID) or None, journal.last_version()
    accepted = _accepted(database)
    written = checkpoints.write(
        directory.checkpoints,
        target.version,
        state,
        {"seq": target.seq},
        _free_path(directory, target.version),
    )
    try:
        copy = _set_copy_aside(directory, database, written.path)
    except BaseException:
        written.path.unlink(missing_ok=True)
        raise
    row = CheckpointRow(
        version=target.version,
        seq=target.seq,
        file=written.path.name,
        size_bytes=written.size_bytes,
        at_s=state["coordinator"]["now_s"],
    )
    waiting = [
        update._replace(outcome="rejected", reason=DROPPED, handle=None, place=None)
        for update in database.waiting_at(target.seq, target.version)
    ]
    facts = {
        RUN_ID: "",
        SYNCED: str(target.seq),
        resumption.GIVEN_UP: "",
        resumption.ROLLED_BACK: str(target.version),
        **resumption.facts_of_excluded(excluded),
    }
    database.rewind(row, waiting, facts)
    _delete_newer(directory, {row.file for row in database.checkpoints()}, target.version)
    return RolledBack(
        version=target.version,
        former_version=former_version,
        run_id=give_new_id(directory, database),
        former_run_id=former,
        updates=accepted - _accepted(database),
        excluded=tuple(sorted(excluded)),
        copy=copy,
    )


def _accepted(database: RewindableDatabase) -> int:
    found = database.conservation()
    return found.aggregated + found.pending


def _free_path(directory: RunDirectory, version: int) -> Path:
    """A name of no file: a checkpoint that the database still names is not written over. More zeros in front say the
    same version."""
    path = checkpoints.path_of(directory.checkpoints, version)
    while path.exists():
        path = path.with_name(f"0{path.name}")
    return path


def _delete_newer(directory: RunDirectory, named: Collection[str], version: int) -> None:
    """Delete checkpoints, and estimates of stale updates, that the database does not name any more.

    Args:
        directory: Of the run.
        named: Files of checkpoints that stay.
        version: Newest version of estimates that stay.
    """
    try:
        for path in directory.checkpoints.glob(f"*{checkpoints.SUFFIX}"):
            if path.name not in named:
                path.unlink()
        for path in directory.compensations.glob(f"*{checkpoints.SUFFIX}"):
            if checkpoints.version_of(path) > version:
                path.unlink()
    except OSError as error:
        raise trouble("delete from", directory.path, error) from None


# --- the copy ---


def _set_copy_aside(directory: RunDirectory, database: RewindableDatabase, new: Path) -> Path:
    """Copy a whole run directory to a folder below `set-aside`. new: a checkpoint that is left out."""
    base = directory.path / SET_ASIDE
    copy: Path | None = None
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        number = copy_detection.next_number(base)
        part = base / f".{number}.part"
        copy = part
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        shutil.copyfile(directory.config, part / directory.config.name)
        database.copy_to(part / directory.database.name)
        _copy_folder(directory.segments, part, may_link=False)
        _copy_folder(directory.checkpoints, part, may_link=True, left_out=new)
        _copy_folder(directory.compensations, part, may_link=True)
        newest = directory.database.with_name(f"{directory.database.name}-newest")
        shutil.copyfile(newest, part / newest.name)
        _sync(part)
        copy = part.rename(base / str(number))
        sync_folder(base)
    except BaseException as error:
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)
        if isinstance(error, OSError):
            raise trouble("copy the run to", base, error) from None
        raise
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


def _copy_folder(folder: Path, to: Path, *, may_link: bool, left_out: Path | None = None) -> None:
    """Copy the files of a folder. may_link: they are replaced and deleted, never written to."""
    target = to / folder.name
    target.mkdir(mode=0o700)
    for path in sorted(folder.iterdir()):
        if path == left_out or not path.is_file():
            continue
        if may_link:
            with suppress(OSError):
                os.link(path, target / path.name)
                continue
        shutil.copyfile(path, target / path.name)
