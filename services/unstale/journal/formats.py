"""Creates `run.db`, checks its format, and converts it from the former one."""

from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.schema import APPLICATION, FORMAT, SCHEMA, UPDATES, VIEWS
from unstale.journal.sqlite import Connection

FORMER_FORMAT = 3  # may be read; a server converts it

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
    """The format of a database. Creates the tables in an empty one if `may_create`.

    Raises:
        UserError: The format is unknown, or it is not the database of a run.
    """
    (application,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    if is_empty and may_create:
        _create(connection)
        return FORMAT
    if application != APPLICATION:
        raise UserError(f"{connection.path} is not the database of a run; name another --run directory")
    if version not in (FORMAT, FORMER_FORMAT):
        raise UserError(
            f"{connection.path} has format {version}, expected {FORMER_FORMAT} or {FORMAT}; resume with the version of "
            "unstale that made it, or name another --run directory"
        )
    return int(version)


def _create(connection: Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != ("wal",):
        raise UserError(
            f"cannot open {connection.path}: its file system does not support a write-ahead log; name a folder on a "
            "local disk"
        )
    connection.executescript(
        f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; {SCHEMA} COMMIT;"
    )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the file without its log is a valid database


def convert(connection: Connection) -> None:
    """Convert a database of the former format, in one transaction. Raises UserError."""
    former = f"updates_{FORMER_FORMAT}"
    with connection.transaction(sync=True, script=_CONVERT):
        rows = connection.rows(row_codec.UPDATES_3.table.select.replace("FROM updates", f"FROM {former}"))
        opened = connection.opened(row_codec.UPDATES_3.table, rows)
        connection.insert(row_codec.UPDATES.table, map(row_codec.from_format_3, opened))
        connection.execute(f"DROP TABLE {former}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
