"""One process of a run: an `unstale` command in a process with all imports done."""

import os
import shutil
import sqlite3
import sys
from pathlib import Path
from threading import Event
from typing import Any

from crash.places import Place, arm
from unstale.cli.main import run
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.journal import rounds
from unstale.journal.disk import PART
from unstale.journal.journal import Journal
from unstale.journal.recorder import IncomingUpdate
from unstale.journal.segments import Segments
from unstale.server import background_writer
from unstale.server.executor import ActionExecutor
from unstale_client import session

PRELOADED = [
    "unstale.server.service",
    "unstale.injector.service",
    "unstale.client.service",
    "unstale.client.workspace",
    "crash.child",
]
"""Imports of the process from which the others are forked."""

GREETING_S = 0.5  # short, because hellos are dropped
LEAVES_S = 0.01  # a sent ack has left the process after that
SEGMENT_BYTES = 64 * 1024  # small, so that some hundred updates fill several segments


def nothing() -> None:
    """Do nothing: the first process warms up the fork server."""


def main(
    arguments: list[str], log: Path, kept: Path, dies_at: tuple[Place, int] | None, *, early_ack: bool = False
) -> None:
    """Run a command until it ends or dies.

    log: file of its output. kept: folder of `preserve`. dies_at: a place, and the number of its call. early_ack: with
    an intentional error, which the checks must detect.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(output, standard)
    for name in [name for name in os.environ if name.startswith("UNSTALE_")]:
        del os.environ[name]
    _prepare(kept)
    if early_ack:
        _acknowledge_early()
    if dies_at is not None:
        arm(*dies_at)
    sys.exit(run(arguments))


def _prepare(kept: Path) -> None:
    session.GREETING_S = GREETING_S
    defaults: Any = Segments.__init__.__kwdefaults__
    defaults["segment_bytes"] = SEGMENT_BYTES
    background_writer.LARGE_BYTES = rounds.MAPPED_BYTES = 1  # as rows of larger models are written
    forget: Any = Journal._forget

    def preserve_and_forget(journal: Journal) -> None:
        if not journal.settings.keep_updates:
            preserve(journal, kept)
        forget(journal)

    Journal._forget = preserve_and_forget  # type: ignore[method-assign]


def _acknowledge_early() -> None:
    """Acknowledge an update before storing it."""
    acknowledge = ActionExecutor._acknowledge

    def at_once(executor: ActionExecutor, verdict: Acknowledge, incoming: IncomingUpdate) -> None:
        acknowledge(executor, verdict, incoming)
        send, message = executor.after_commit.pop()
        send(message)
        if verdict.outcome is Outcome.ACCEPTED:
            Event().wait(LEAVES_S)
            acknowledged()

    ActionExecutor._acknowledge = at_once  # type: ignore[method-assign]


def acknowledged() -> None:
    """Do nothing, as a place to die at."""


def preserve(journal: Journal, kept: Path) -> None:
    """Copy, for the checks, the events and rows that a checkpoint deletes or overwrites."""
    kept.mkdir(exist_ok=True)
    for path in journal.directory.segments.iterdir():
        copy = kept / f"{path.name}{PART}"  # renamed when complete: a process may die here
        shutil.copyfile(path, copy)
        copy.rename(kept / path.name)
    run_db = journal.database._connection
    aside = sqlite3.connect(kept / "kept.db", isolation_level=None)
    aside.executescript(KEPT)
    with aside:
        aside.execute("BEGIN")
        aside.executemany(
            "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)",
            run_db.execute("SELECT seq, at_s, kind, fields FROM events"),
        )
        places = run_db.execute("SELECT handle, segment, offset, size_bytes FROM updates WHERE segment IS NOT NULL")
        aside.executemany(
            "INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?)",
            [(handle, f"{segment:08d}.rows", offset, size) for handle, segment, offset, size in places],
        )
    aside.close()


KEPT = """
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, at_s REAL, kind TEXT, fields TEXT);
CREATE TABLE IF NOT EXISTS places (handle INTEGER PRIMARY KEY, file TEXT, offset INTEGER, size_bytes INTEGER);
"""
