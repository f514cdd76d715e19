"""Stored facts about whether and from where a run resumes, and with which clients."""

import json
from collections.abc import Collection
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.copy_detection import last_version
from unstale.journal.database import Database

GIVEN_UP = "given_up"  # reason why the last server gave up the run; "" or missing if it did not
EXCLUDED = "excluded"  # JSON list of ids of excluded clients
ROLLED_BACK = "rolled_back"  # version of the last rollback


def give_up(database: Database, path: Path, why: str) -> str:
    """Store the reason why the run is given up; returns the error message for it. path: of the run directory."""
    database.set_meta({GIVEN_UP: why})
    return f"{why}; {_remedy(database, path)}"


def check_not_given_up(database: Database, path: Path) -> None:
    """Raise UserError if the last server gave up the run. path: of the run directory."""
    why = database.meta(GIVEN_UP)
    if why:
        raise UserError(f"the run in {path} was given up: {why}; {_remedy(database, path)}")


def excluded(database: Database) -> frozenset[int]:
    """Ids of excluded clients."""
    return frozenset(json.loads(database.meta(EXCLUDED) or "[]"))


def facts_of_excluded(client_ids: Collection[int]) -> dict[str, str]:
    """Ids of all excluded clients, for `Database.set_meta`."""
    return {EXCLUDED: json.dumps(sorted(client_ids))}


def first_computable(database: Database) -> int:
    """First version > 0 from which every version can be computed from a checkpoint and events.

    Events before a rollback are not replayed: they do not contain the updates that it dropped.
    """
    rolled_back = database.meta(ROLLED_BACK)
    if not rolled_back and database.is_complete():
        return 1
    after = int(rolled_back or 0)
    bases = [row.version for row in database.checkpoints() if row.version >= after]
    return max(1, min(bases)) if bases else last_version(database) + 1


def possible_versions(database: Database, last: int) -> str:
    """Versions that a run can be rolled back to, as text. last: the newest version."""
    first = first_computable(database)
    saved = sorted(row.version for row in database.checkpoints() if 0 < row.version < first)
    later = [f"{first} to {last}"] if first < last else [f"{first}"] if first == last else []
    if first == 1 <= last:
        return f"0 to {last}"
    words = ["0", *map(str, saved), *later]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _remedy(database: Database, path: Path) -> str:
    versions = possible_versions(database, last_version(database))
    return (
        f"`unstale rollback {path} --to VERSION` resumes it from an earlier version ({versions}), or start a new run "
        "with --run"
    )
