"""One process of a run: `unstale` as a user starts it, in a process that has imported everything already."""

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
    "sklearn.datasets",
    "crash.child",
]
"""What the process imports from which the others are forked."""

GREETING_S = 0.5  # so that nobody waits for a hello that was dropped
LEAVES_S = 0.01  # an ack that was said is gone after that
SEGMENT_BYTES = 64 * 1024  # so that a run of some hundred small updates has several segments


def nothing() -> None:
    """Be a process that does nothing: when it has ended, the next ones start at once."""


def main(
    arguments: list[str], log: Path, kept: Path, dies_at: tuple[Place, int] | None, *, hasty: bool = False
) -> None:
    """Be a process until it ends or dies.

    log: takes what it writes. kept: where `put_aside` puts things. dies_at: a place, and at which call of it.
    hasty: with a mistake made on purpose, which must be found.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(output, standard)
    for name in [name for name in os.environ if name.startswith("UNSTALE_")]:
        del os.environ[name]
    _prepare(kept)
    if hasty:
        _speak_early()
    if dies_at is not None:
        arm(*dies_at)
    sys.exit(run(arguments))


def _prepare(kept: Path) -> None:
    session.GREETING_S = GREETING_S
    defaults: Any = Segments.__init__.__kwdefaults__
    defaults["segment_bytes"] = SEGMENT_BYTES
    background_writer.LARGE_BYTES = 1  # as rows of larger models are written
    forget: Any = Journal._forget

    def put_aside_and_forget(journal: Journal) -> None:
        if not journal.settings.keep_updates:
            put_aside(journal, kept)
        forget(journal)

    Journal._forget = put_aside_and_forget  # type: ignore[method-assign]


def _speak_early() -> None:
    """Say at once that an update counts, and store it afterwards."""
    acknowledge = ActionExecutor._acknowledge

    def at_once(executor: ActionExecutor, verdict: Acknowledge, incoming: IncomingUpdate) -> None:
        acknowledge(executor, verdict, incoming)
        say, about = executor.after_commit.pop()
        say(about)
        if verdict.outcome is Outcome.ACCEPTED:
            Event().wait(LEAVES_S)
            told()

    ActionExecutor._acknowledge = at_once  # type: ignore[method-assign]


def told() -> None:
    """Nothing: a place to die at."""


def put_aside(journal: Journal, kept: Path) -> None:
    """Keep, for the books, what a checkpoint makes unnecessary: events, and rows, which others are written over."""
    kept.mkdir(exist_ok=True)
    for path in journal.directory.segments.iterdir():
        copy = kept / f"{path.name}{PART}"  # named when it is whole: a process may die here
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
