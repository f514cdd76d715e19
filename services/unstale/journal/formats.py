"""The format of `run.db`: made, recognised, and converted from the former one."""

from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.schema import APPLICATION, FORMAT, SCHEMA, UPDATES, VIEWS
from unstale.journal.sqlite import Connection

FORMER_FORMAT = 3  # is read as it is, and converted by a server

_CONVERT = f"""
BEGIN IMMEDIATE;
DROP VIEW conservation;
DROP VIEW clients;
DROP INDEX updates_by_round;
DROP INDEX updates_by_segment;
ALTER TABLE updates RENAME TO updates_{FORMER_FORMAT};
{UPDATES}
{VIEWS}
"""


def recognised(connection: Connection, *, may_create: bool) -> int:
    """The format of a database; an empty one becomes one of the newest format.

    Args:
        connection: To the database.
        may_create: Whether an empty one may be written to.

    Raises:
        UserError: It has another format, or is the database of something else.
    """
    (application,), (version,) = (
        connection.execute(f"PRAGMA {fact}").fetchone() for fact in ("application_id", "user_version")
    )
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    if is_empty and may_create:
        _create(connection)
        return FORMAT
    if application != APPLICATION:
        raise UserError(f"{connection.path} is not the database of a run; name another --run directory")
    if version not in (FORMAT, FORMER_FORMAT):
        raise UserError(
            f"{connection.path} has format {version}, expected {FORMER_FORMAT} or {FORMAT}; go on with the version of "
            "unstale that made it, or name another --run directory"
        )
    return int(version)


def _create(connection: Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != ("wal",):
        raise UserError(
            f"cannot open {connection.path}: its file system takes no write-ahead log; name a folder on a local disk"
        )
    connection.executescript(
        f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA} COMMIT;"
    )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # without its log it is still a run's


def convert(connection: Connection) -> None:
    """Turn a database of the former format into one of this format, in one transaction. Raises UserError."""
    former = f"updates_{FORMER_FORMAT}"
    with connection.transaction(sync=True, script=_CONVERT):
        rows = connection.rows(row_codec.UPDATES_3.select.replace("FROM updates", f"FROM {former}"))
        opened = connection.opened(row_codec.UPDATES_3, rows)
        connection.insert(row_codec.UPDATES, map(row_codec.of_format_3, opened))
        connection.execute(f"DROP TABLE {former}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
