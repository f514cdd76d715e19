"""Reads all of `run.db`, verifies the checksum of each row, and compares rows with one another."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unstale.journal import records
from unstale.journal.row_codec import Codec
from unstale.journal.rows import EventRow
from unstale.journal.sqlite import Connection
from unstale.journal.tables import META, ChangedRowError, Table, Values

UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)  # raised for a row that is not a record
LISTED = 20  # damaged rows listed per table


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Result of an audit."""

    rows: Mapping[str, int]  # by table
    damages: tuple[str, ...]  # such as "tasks task_id 7 does not match its checksum"


class Rule(NamedTuple):
    """A relation between rows."""

    query: str  # SQL that selects violations
    damage: str  # format of the message about one, for the columns of the query


_PARTS = {
    "covered": "(SELECT ifnull(min(seq), 0) FROM checkpoints)",
    "covered_version": "(SELECT ifnull(min(version), 0) FROM checkpoints)",
    "last_version": "(SELECT ifnull(max(version), 0) FROM rounds)",
    "applied": "(SELECT json_extract(fields, '$.version') FROM events WHERE kind = 'RoundApplied')",
}
"""Common parts of the queries, by name."""

RULES = (
    # Events before the oldest checkpoint are deleted.
    Rule(
        "SELECT previous + 1 FROM (SELECT seq, lag(seq) OVER (ORDER BY seq) AS previous FROM "
        "(SELECT {covered} AS seq UNION ALL SELECT seq FROM events WHERE seq > {covered} "
        "UNION ALL SELECT seq FROM updates WHERE seq > {covered})) WHERE seq > previous + 1",
        "event {} is missing in the tables events and updates",
    ),
    Rule("SELECT seq FROM events JOIN updates USING (seq)", "event {} exists twice, in the tables events and updates"),
    Rule(
        "SELECT seq, task_id FROM updates WHERE task_id NOT IN (SELECT task_id FROM tasks)",
        "updates seq {} is of task {}, which is not in the table tasks",
    ),
    Rule(
        "SELECT seq, task_id FROM updates JOIN tasks USING (task_id) WHERE handle IS NOT NULL "
        "AND (updates.client_id != tasks.client_id OR base_version != version)",
        "updates seq {} has another client or version than tasks task_id {}",
    ),
    Rule(
        "SELECT seq FROM updates WHERE (round IS NULL) != (position IS NULL) OR (round IS NULL) != (staleness IS NULL)",
        "updates seq {} has a round without a position or staleness, or the other way round",
    ),
    Rule(
        "SELECT seq FROM updates WHERE handle IS NOT NULL AND (offset IS NULL OR size_bytes IS NULL "
        "OR checksum IS NULL OR (round IS NULL AND segment IS NULL))",
        "updates seq {} was accepted and has no place in a segment",
    ),
    Rule(
        "SELECT seq, round FROM updates WHERE round IS NOT NULL AND round NOT IN (SELECT version FROM rounds)",
        "updates seq {} is of round {}, which is not in the table rounds",
    ),
    Rule(
        "SELECT seq, staleness, round, base_version FROM updates WHERE staleness != round - 1 - base_version",
        "updates seq {} has staleness {}, in round {} with base version {}",
    ),
    Rule(
        "SELECT round FROM updates WHERE round IS NOT NULL GROUP BY round "
        "HAVING min(position) != 0 OR max(position) != count(*) - 1 OR count(DISTINCT position) != count(*)",
        "the updates of round {} do not have the positions 0, 1, 2, ...",
    ),
    Rule(
        "SELECT version FROM rounds WHERE json_valid(compensation) AND json_array_length(compensation, '$.updates') != "
        "(SELECT count(*) FROM updates WHERE handle IS NOT NULL AND round = version)",
        "rounds version {} has a compensation for another number of updates than it was made of",
    ),
    Rule(
        "SELECT previous + 1 FROM (SELECT version, lag(version, 1, 0) OVER (ORDER BY version) AS previous FROM rounds) "
        "WHERE version != previous + 1",
        "rounds version {} is missing",
    ),
    Rule(
        "SELECT version FROM rounds WHERE version > {covered_version} AND version NOT IN {applied}",
        "rounds version {} has no event RoundApplied",
    ),
    Rule(
        "SELECT seq, json_extract(fields, '$.version') AS version FROM events WHERE kind = 'RoundApplied' "
        "AND version NOT IN (SELECT version FROM rounds)",
        "events seq {} is of version {}, which is not in the table rounds",
    ),
    Rule(
        "SELECT version FROM evaluations WHERE version > {last_version}",
        "evaluations version {} is not in the table rounds",
    ),
    Rule(
        "SELECT own_evaluations.seq FROM own_evaluations LEFT JOIN updates USING (seq) WHERE handle IS NULL "
        "OR updates.client_id != own_evaluations.client_id OR version != base_version",
        "own_evaluations seq {} does not belong to an accepted update of that client and version",
    ),
    Rule(
        "SELECT version FROM checkpoints WHERE version > {last_version} "
        "OR seq > (SELECT max(seq) FROM (SELECT seq FROM events UNION ALL SELECT seq FROM updates "
        "UNION ALL SELECT {covered}))",
        "checkpoints version {} is newer than the tables rounds, events and updates",
    ),
)


def audit(connection: Connection, codecs: Sequence[Codec[Any]]) -> Audit:
    """Verify all rows of these tables and of `meta`; compare them if all are intact."""
    # Damages that SQLite detects: in pages, and in indexes that contradict their tables.
    results = [str(text) for (text,) in connection.rows(f"PRAGMA integrity_check({LISTED})")]
    damages = [" ".join(text.split()) for text in results if text != "ok"]
    rows: dict[str, int] = {}
    for table, decode in [(META, tuple), *((codec.table, codec.decode) for codec in codecs)]:
        rows[table.name], damaged = _read(connection, table, decode)
        damages += damaged[:LISTED]
        if len(damaged) > LISTED:
            damages.append(f"{table.name}: {len(damaged) - LISTED} more rows do not match their checksums")
    if not damages:
        for rule in RULES:
            violations = connection.rows(f"{rule.query.format(**_PARTS)} LIMIT {LISTED}")
            damages += [rule.damage.format(*values) for values in violations]
    return Audit(rows=rows, damages=tuple(damages))


def _read(connection: Connection, table: Table, decode: Callable[[Values], Any]) -> tuple[int, list[str]]:
    """Number of rows, and damages."""
    count = 0
    damages = []
    for values in connection.rows(table.select):
        count += 1
        try:
            record = decode(table.opened(values))
            if isinstance(record, EventRow):
                records.to_event(record)
        except ChangedRowError as error:
            damages.append(str(error))
        except UNREADABLE:
            damages.append(f"{table.row(values)} cannot be read")
    return count, damages


def totals(connection: Connection, tables: Iterable[Table]) -> str:
    """Number of rows and sum of checksums by table, as JSON: to detect changes while no server runs."""
    counts = {}
    for table in tables:
        (counts[table.name],) = connection.rows(table.total)
    return json.dumps(counts)


def differences(before: str, after: str) -> Iterator[str]:
    """Changes between two `totals`."""
    former = json.loads(before)
    for name, (rows, checksums) in json.loads(after).items():
        rows_before, checksums_before = former.get(name, (rows, checksums))
        if rows != rows_before:
            yield f"table {name} has {rows} rows, and had {rows_before} when the last server ended"
        elif checksums != checksums_before:
            yield f"rows of table {name} were changed after the last server had ended"
