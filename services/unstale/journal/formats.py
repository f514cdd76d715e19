"""Creates `run.db`, checks its format, and converts it from a former one."""

from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.schema import APPLICATION, FORMAT, OLDEST_FORMAT, SCHEMA, UPDATES, VIEWS
from unstale.journal.sqlite import Connection

_CONVERT = f"""
BEGIN IMMEDIATE;
DROP VIEW conservation;
DROP VIEW clients;
DROP INDEX updates_by_round;
DROP INDEX updates_by_segment;
ALTER TABLE updates RENAME TO former_updates;
{UPDATES}
{VIEWS}
"""


def recognised(connection: Connection, *, may_create: bool) -> int:
    """The format of a database. Creates the tables in an empty one if `may_create`.

    Raises UserError if the format is unknown, or it is not the database of a run.
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
    formats = range(OLDEST_FORMAT, FORMAT + 1)
    if version not in formats:
        raise UserError(
            f"{connection.path} has format {version}, expected {' or '.join(map(str, formats))}; resume with the "
            "version of unstale that made it, or name another --run directory"
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


def convert(connection: Connection, version: int) -> None:
    """Convert a database of a former format, in one transaction. Raises UserError."""
    former = row_codec.updates(version).table
    with connection.transaction(sync=True, script=_CONVERT):
        rows = connection.rows(former.select.replace("FROM updates", "FROM former_updates"))
        opened = connection.opened(former, rows)
        connection.insert(row_codec.UPDATES.table, (row_codec.newest(values, version) for values in opened))
        connection.execute("DROP TABLE former_updates")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
