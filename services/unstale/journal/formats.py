"""Creates `run.db`, checks its format, and converts it from a former one."""

from collections.abc import Iterator

from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.schema import (
    APPLICATION,
    EVALUATIONS,
    FORMAT,
    OLDEST_FORMAT,
    OWN_EVALUATIONS,
    ROUNDS,
    SCHEMA,
    UPDATES,
    VIEWS,
)
from unstale.journal.sqlite import Connection
from unstale.journal.tables import TOTALS, Table, Values

_CONVERT = f"""
BEGIN IMMEDIATE;
DROP VIEW conservation;
DROP VIEW clients;
DROP INDEX updates_by_round;
DROP INDEX updates_by_segment;
ALTER TABLE updates RENAME TO former_updates;
ALTER TABLE rounds RENAME TO former_rounds;
ALTER TABLE evaluations RENAME TO former_evaluations;
ALTER TABLE own_evaluations RENAME TO former_own_evaluations;
{ROUNDS}
{EVALUATIONS}
{OWN_EVALUATIONS}
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
    with connection.transaction(sync=True, script=_CONVERT):
        former = row_codec.updates(version).table
        rows = _former_rows(connection, former)
        connection.insert(row_codec.UPDATES.table, (row_codec.newest(values, version) for values in rows))
        for codec in (row_codec.ROUNDS, row_codec.EVALUATIONS, row_codec.OWN_EVALUATIONS):
            former_codec = row_codec.in_format(codec, version)
            records = map(former_codec.decode, _former_rows(connection, former_codec.table))
            connection.insert(codec.table, map(codec.encode, records))
        for name in ("updates", "rounds", "evaluations", "own_evaluations"):
            connection.execute(f"DROP TABLE former_{name}")
        connection.execute("DELETE FROM meta WHERE key = ?", (TOTALS,))  # of the former tables
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _former_rows(connection: Connection, table: Table) -> Iterator[Values]:
    """The rows of a renamed table, with checksums verified."""
    rows = connection.rows(table.select.replace(f"FROM {table.name}", f"FROM former_{table.name}"))
    return connection.opened(table, rows)
