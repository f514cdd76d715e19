"""Creates `run.db`, checks its format, and converts older formats to the newest."""

from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.schema import APPLICATION, FORMAT, OLDEST_FORMAT, SCHEMA, UPDATES, VIEWS
from unstale.journal.sqlite import Connection

_BEGIN_CONVERSION = f"""
BEGIN IMMEDIATE;
DROP VIEW conservation;
DROP VIEW clients;
DROP INDEX updates_by_round;
DROP INDEX updates_by_segment;
ALTER TABLE updates RENAME TO old_updates;
{UPDATES}
{VIEWS}
"""


def create_or_check(connection: Connection, *, may_create: bool) -> int:
    """Return the format of a database; create the tables in an empty one if `may_create`.

    Raises UserError for an unsupported format, and for the database of another application.
    """
    (application,), (stored_format,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    if is_empty and may_create:
        _create(connection)
        return FORMAT
    if application != APPLICATION:
        raise UserError(f"{connection.path} is not the database of a run; name another --run directory")
    formats = range(OLDEST_FORMAT, FORMAT + 1)
    if stored_format not in formats:
        raise UserError(
            f"{connection.path} has format {stored_format}, expected {' or '.join(map(str, formats))}; resume with the "
            "version of unstale that created it, or name another --run directory"
        )
    return int(stored_format)


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
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a copy of the file without its log is a valid database


def convert(connection: Connection, old_format: int) -> None:
    """Convert a database to the newest format, in one transaction. Raises UserError; DamagedError for a wrong row."""
    old_table = row_codec.updates(old_format).table
    with connection.transaction(sync=True, script=_BEGIN_CONVERSION):
        rows = connection.rows(old_table.select.replace("FROM updates", "FROM old_updates"))
        verified = connection.verified(old_table, rows)
        connection.insert(row_codec.UPDATES.table, (row_codec.newest(values, old_format) for values in verified))
        connection.execute("DROP TABLE old_updates")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
