"""The database: whole turns or nothing, read back as stored, and damage that is found."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.journal import accepted, checkpoint, evaluation, event, own_evaluation, rejected, round_of, task, turn
from unstale.errors import UserError
from unstale.journal import records
from unstale.journal.database import Conservation, Database
from unstale.journal.rows import Batch, Location, UpdateRow
from unstale.learner.row_checks import Norms
from unstale_client.disk import DamagedError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def stored(path: Path, *batches: Batch) -> Database:
    database = Database(path)
    for batch in batches:
        database.store(batch, sync=False)
    return database


def test_every_record_is_restored_unchanged(path: Path) -> None:
    place = Location(segment=3, offset=16, size_bytes=8, checksum=2**64 - 1)
    measured = accepted(1, 0, place)._replace(norms=Norms(1.5, math.inf, 0.0))
    members = (measured, accepted(2, 1, place, loss=-0.0))
    batch = Batch(
        events=[event(4, task_id=2**63 - 1, reason=None), event(5, silent=[1, 2]), event(7)],
        tasks=[task(1), task(2, client_id=1)],
        updates=[*members, rejected(3), rejected(6, "expired-task")],
        rounds=[round_of(1, 0, 1)],
        evaluations=[evaluation(1)],
        own_evaluations=[own_evaluation(1), own_evaluation(2, client_id=1, accuracy=1.0)],
        checkpoints=[checkpoint(1, 2)],
    )
    stored(path, batch).close()
    database = Database(path)
    happened = sorted([*batch.events, *map(records.arrival, batch.updates)], key=lambda row: row.seq)
    assert list(database.events_after(0)) == happened
    assert list(database.events_after(4)) == happened[4:]
    assert list(database.tasks()) == batch.tasks
    assert list(database.updates_after(0)) == batch.updates
    assert list(database.updates_of(1)) == list(members)
    assert list(database.rounds()) == batch.rounds
    assert list(database.rounds(after=1)) == []
    assert list(database.evaluations()) == batch.evaluations
    assert list(database.own_evaluations()) == batch.own_evaluations
    assert database.checkpoints() == batch.checkpoints
    assert database.last_seq() == 7
    assert database.last_handle() == 1
    assert database.started_s() == 0.5
    database.close()


def test_the_sign_of_zero_and_nan_are_restored(path: Path) -> None:
    database = stored(
        path,
        Batch(updates=[accepted(1, 0, loss=-0.0)]),
        Batch(
            rounds=[round_of(1, 0, weight=-0.0, rate_factor=math.nan)],
            evaluations=[evaluation(1, math.nan), evaluation(2, math.inf)],
        ),
    )
    update = database.update(0)
    (round_,), losses = database.rounds(), [each.metrics["loss"] for each in database.evaluations()]
    assert update is not None
    assert math.copysign(1, update.staged.loss) == -1
    assert math.copysign(1, round_.members[0].weight) == -1
    assert math.isnan(round_.rate_factor)
    assert math.isnan(losses[0])
    assert losses[1] == math.inf
    database.close()


def test_metrics_by_name_come_back_and_sqlite_shows_accuracy_and_loss(path: Path) -> None:
    metrics = {"mae": 0.1 + 0.2, "val/r2": -1e300, "loss": math.inf, "odd": 5e-324}
    update = accepted(1, 0)
    update = update._replace(staged=replace(update.staged, metrics=metrics))
    batch = Batch(
        updates=[update],
        rounds=[round_of(1, 0)._replace(metrics={"stage": 2.0})],
        evaluations=[evaluation(1)._replace(metrics=metrics), evaluation(2)._replace(metrics={"mae": math.nan})],
        own_evaluations=[own_evaluation(1)._replace(metrics={"mae": 0.5})],
    )
    database = stored(path, batch)
    first, second = database.evaluations()
    assert list(first.metrics.items()) == list(metrics.items())
    assert math.isnan(second.metrics["mae"])
    assert next(database.own_evaluations()).metrics == {"mae": 0.5}
    assert next(database.rounds()).metrics == {"stage": 2.0}
    assert next(database.updates_after(0)).staged.metrics == metrics
    database.close()
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT accuracy, loss FROM evaluations").fetchall()
    connection.close()
    assert rows == [(None, math.inf), (None, None)]


def test_an_update_and_a_round_without_metrics_store_null(path: Path) -> None:
    stored(path, Batch(updates=[accepted(1, 0)], rounds=[round_of(1, 0)])).close()
    with sqlite3.connect(path) as connection:
        query = "SELECT updates.metrics, rounds.metrics FROM updates JOIN rounds ON round = version"
        assert connection.execute(query).fetchall() == [(None, None)]
    connection.close()


def test_an_empty_database_has_nothing(path: Path) -> None:
    database = Database(path)
    assert (database.last_seq(), database.last_handle(), database.started_s()) == (0, -1, None)
    assert database.meta("run_id") is None
    assert database.update(0) is None
    assert database.segment_ends() == {}
    assert database.conservation() == Conservation(received=0, aggregated=0, pending=0, rejected=0)
    database.close()


def test_facts_about_the_run_are_stored(path: Path) -> None:
    database = Database(path)
    database.set_meta({"run_id": "a", "by": "me"})
    database.set_meta({"by": "you"})
    database.close()
    database = Database(path)
    assert (database.meta("run_id"), database.meta("by")) == ("a", "you")
    database.close()


def test_members_are_in_the_order_of_the_round_not_of_arrival(path: Path) -> None:
    database = stored(path, Batch(updates=[accepted(1, 7), accepted(2, 8)], rounds=[round_of(1, 8, 7)]))
    assert [update.handle for update in database.updates_of(1)] == [8, 7]
    assert [member.handle for member in next(database.rounds()).members] == [8, 7]
    database.close()


def test_a_version_that_is_measured_or_saved_again_is_there_once(path: Path) -> None:
    again = checkpoint(1, 1)._replace(size_bytes=7)
    database = stored(
        path,
        Batch(evaluations=[evaluation(1)], checkpoints=[checkpoint(1, 1)]),
        Batch(evaluations=[evaluation(1, 0.5)], checkpoints=[again]),
    )
    assert [each.metrics["loss"] for each in database.evaluations()] == [0.5]
    assert database.checkpoints() == [again]
    database.close()


def test_what_never_happened_was_not_measured_by_a_client_either(path: Path) -> None:
    updates = [accepted(1, 0), accepted(2, 1)]
    database = stored(path, Batch(updates=updates, own_evaluations=[own_evaluation(1), own_evaluation(2)]))
    database.cut_back(2)
    assert list(database.own_evaluations()) == [own_evaluation(1)]
    assert list(database.updates_after(0)) == updates[:1]
    database.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["accept", "reject", "round"]), max_size=25))
def test_a_received_update_is_aggregated_or_pending_or_rejected_after_every_turn(
    tmp_path_factory: pytest.TempPathFactory, happens: list[str]
) -> None:
    database = Database(tmp_path_factory.mktemp("run") / "run.db")
    waiting: list[int] = []
    counts = {"received": 0, "aggregated": 0, "pending": 0, "rejected": 0}
    for seq, what in enumerate(happens, start=1):
        if what == "accept":
            database.store(Batch(updates=[accepted(seq, seq)]), sync=False)
            waiting.append(seq)
        elif what == "reject":
            database.store(Batch(updates=[rejected(seq)]), sync=False)
            counts["rejected"] += 1
        else:
            database.store(Batch(rounds=[round_of(seq, *waiting)]), sync=False)
            counts["aggregated"] += len(waiting)
            waiting = []
        counts["received"] += what != "round"
        counts["pending"] = len(waiting)
        assert database.conservation() == Conservation(**counts)
        assert counts["received"] == counts["aggregated"] + counts["pending"] + counts["rejected"]
        assert [update.handle for update in database.pending()] == waiting
    database.close()


def test_the_view_of_clients_counts_for_each_what_it_was_given_and_sent(path: Path) -> None:
    stored(
        path,
        Batch(
            tasks=[task(1, client_id=4), task(2, client_id=4), task(3, client_id=4), task(4, client_id=5)],
            updates=[accepted(1, 0, client_id=4), accepted(2, 1, client_id=4), rejected(3, client_id=4)],
            rounds=[round_of(1, 0)],
        ),
    ).close()
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT * FROM clients").fetchall()
        columns = [column for _, column, *_ in connection.execute("PRAGMA table_info(clients)")]
    connection.close()
    assert columns[:6] == ["client_id", "tasks", "received", "aggregated", "pending", "rejected"]
    assert found == [(4, 3, 3, 1, 1, 1, 0.0, 0.375), (5, 1, 0, 0, 0, 0, None, None)]


def test_segments_are_needed_by_rows_that_wait_or_belong_to_later_rounds(path: Path) -> None:
    def lies_in(segment: int, offset: int = 16) -> Location:
        return Location(segment=segment, offset=offset, size_bytes=10, checksum=1)

    database = stored(
        path,
        Batch(updates=[accepted(seq, seq, lies_in(seq)) for seq in range(1, 5)]),
        Batch(updates=[accepted(5, 5, lies_in(4, offset=26))], rounds=[round_of(1, 1), round_of(2, 2)]),
    )
    assert database.segment_ends() == {1: 26, 2: 26, 3: 26, 4: 36}
    assert database.segments_after(0) == {1, 2, 3, 4}
    assert database.segments_after(1) == {2, 3, 4}
    database.forget_segments(database.segments_after(1))
    assert database.segment_ends() == {2: 26, 3: 26, 4: 36}
    places = [update.location for update in database.updates_after(0)]
    assert places == [None, lies_in(2), lies_in(3), lies_in(4), lies_in(4, offset=26)]
    database.close()


def test_forgotten_events_and_checkpoints_are_deleted_and_the_count_continues(path: Path) -> None:
    database = stored(path, Batch(events=[event(1), event(2)], checkpoints=[checkpoint(1, 1), checkpoint(2, 2)]))
    database.forget_events(2)
    database.forget_checkpoints(2)
    assert [row.version for row in database.checkpoints()] == [2]
    assert list(database.events_after(2)) == []
    assert database.last_seq() == 2
    database.close()


def test_a_store_that_fails_leaves_nothing_of_it(path: Path) -> None:
    database = stored(path, turn(1, 0))
    with pytest.raises(sqlite3.IntegrityError):
        database.store(Batch(events=[event(2)], updates=[accepted(2, 0)]), sync=False)
    with pytest.raises(AssertionError, match="not pending"):
        database.store(Batch(events=[event(2)], rounds=[round_of(1, 0, 1)]), sync=False)
    assert database.last_seq() == 1
    assert database.conservation().pending == 1
    database.store(turn(2, 1), sync=True)
    assert database.last_seq() == 2
    database.close()


def test_others_read_while_it_is_written(path: Path) -> None:
    database = stored(path, turn(1, 0))
    reader = Database(path, read_only=True)
    database.store(turn(2, 1), sync=False)
    assert reader.last_seq() == 2
    with pytest.raises(UserError, match=r"cannot write .*run\.db: .*readonly"):
        reader.store(turn(3, 2), sync=False)
    reader.close()
    database.close()


def test_a_reader_takes_events_that_are_stored_while_it_opens_for_no_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stored(path, turn(1, 0))
    last_seq = Database.last_seq

    def stored_meanwhile(database: Database) -> int:
        last = last_seq(database)
        writer.store(turn(2, 1), sync=False)
        return last

    monkeypatch.setattr(Database, "last_seq", stored_meanwhile)
    reader = Database(path, read_only=True)
    monkeypatch.undo()
    assert (reader.missing, reader.last_seq()) == (0, 2)
    reader.close()
    writer.close()


def test_reading_leaves_no_file_behind(path: Path) -> None:
    stored(path, turn(1, 0)).close()
    before = sorted(path.parent.iterdir())
    reader = Database(path, read_only=True)
    assert reader.last_seq() == 1
    reader.close()
    assert sorted(path.parent.iterdir()) == before


# --- damage ---


def test_the_error_names_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(DamagedError, match=r"run\.db is damaged \(file is not a database\)"):
        Database(path)


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(UserError, match="is not the database of a run"):
        Database(path)


def test_another_format_is_refused(path: Path) -> None:
    stored(path, turn(1, 0)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(UserError, match="has format 1, expected 3 or 4 or 5; resume with the version of unstale"):
        Database(path)


def everything(path: Path) -> None:
    """Read all that is read when a run is taken up."""
    database = Database(path)
    try:
        assert list(database.events_after(0)) + list(database.updates_after(0)) + list(database.rounds())
    finally:
        database.close()


@pytest.mark.parametrize("column", ["at_s", "kind", "fields"])
def test_a_change_of_an_event_is_found(path: Path, column: str) -> None:
    stored(path, Batch(events=[event(1)])).close()
    _change(path, f"UPDATE events SET {column} = (SELECT max(at_s) + 1 FROM events)")
    with pytest.raises(DamagedError, match="events seq 1 does not match its checksum"):
        everything(path)


@pytest.mark.parametrize(
    "column",
    [
        *("client_id", "base_version", "num_examples", "loss", "norm", "handle", "checksum"),
        *("segment", "round", "position", "staleness", "weight"),
    ],
)
def test_a_change_of_an_update_is_found(path: Path, column: str) -> None:
    stored(path, turn(1, 0), Batch(rounds=[round_of(1, 0)])).close()
    _change(path, f"UPDATE updates SET {column} = ifnull({column}, 0) + 1")
    with pytest.raises(DamagedError, match="updates seq 1 does not match its checksum"):
        everything(path)


@pytest.mark.parametrize("table", ["events", "updates"])
def test_a_missing_event_is_found(path: Path, table: str) -> None:
    second = Batch(events=[event(2)]) if table == "events" else turn(2, 2)
    stored(path, turn(1, 1), second, Batch(events=[event(3)]), turn(4, 4)).close()
    _change(path, f"DELETE FROM {table} WHERE seq = 2")
    with pytest.raises(DamagedError, match="event 2 is missing"):
        everything(path)


def _change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_database_that_was_cut_is_found(path: Path, keep: float) -> None:
    stored(path, *(turn(seq, seq) for seq in range(1, 200))).close()
    os.truncate(path, int(path.stat().st_size * keep))
    with pytest.raises(DamagedError, match=r"run\.db is damaged.*put it back from a copy"):
        everything(path)


def left_by_a_crash(path: Path, count: int) -> None:
    """A database and its log as a killed process leaves them: closing would move the log into the database."""
    database = stored(path, *(turn(seq, seq) for seq in range(1, count + 1)))
    copies = {file: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
    database.close()
    for file, content in copies.items():
        file.write_bytes(content)


def test_rows_stored_by_a_killed_process_are_readable(path: Path) -> None:
    left_by_a_crash(path, 5)
    database = Database(path)
    assert database.last_seq() == 5
    database.close()


def test_a_missing_log_is_found(path: Path) -> None:
    left_by_a_crash(path, 5)
    path.with_name("run.db-wal").unlink()
    with pytest.raises(DamagedError, match=r"ends with event 0, but event 5 was stored: run\.db-wal is damaged"):
        Database(path)
    path.with_name("run.db-newest").unlink()
    database = Database(path)
    assert database.last_seq() == 0
    database.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_flipped_bit_in_the_log_is_found(path: Path, share: float) -> None:
    left_by_a_crash(path, 5)
    log = path.with_name("run.db-wal")
    data = bytearray(log.read_bytes())
    data[int(share * len(data))] ^= 4
    log.write_bytes(data)
    with pytest.raises(DamagedError, match="but event 5 was stored"):
        Database(path)


def test_a_damaged_second_witness_says_so(path: Path) -> None:
    stored(path, turn(1, 0)).close()
    path.with_name("run.db-newest").write_bytes(b"\x02" + bytes(15))
    with pytest.raises(DamagedError, match=r"run\.db-newest is damaged; run `unstale restore"):
        Database(path)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_a_flipped_bit_anywhere_ends_in_a_sentence_or_changes_nothing_that_counts(
    tmp_path_factory: pytest.TempPathFactory, share: float, bit: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.db"
    batches = [turn(seq, seq) for seq in range(1, 40)]
    stored(path, *batches).close()
    updates: list[UpdateRow] = [update for batch in batches for update in batch.updates]
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        database = Database(path)
    except UserError:
        return
    try:
        found = list(database.updates_after(0))
        assert [(row.seq, row.staged.loss, row.handle) for row in found] == [
            (row.seq, row.staged.loss, row.handle) for row in updates
        ]
        assert list(database.events_after(0)) == [records.arrival(update) for update in updates]
    except UserError:
        pass
    finally:
        database.close()


def test_a_run_that_two_write_is_refused_to_the_second(path: Path) -> None:
    first = stored(path, turn(1, 0))
    first._connection.execute("BEGIN IMMEDIATE")
    second = Database(path)
    second._connection.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(UserError, match="database is locked; end the program"):
        second.store(turn(2, 1), sync=False)
    second.close()
    first.close()


_STORES_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from support.journal import turn
from unstale.journal.database import Database
from unstale.journal.rows import Batch
from unstale.learner.row_checks import Norms

database = Database(Path(sys.argv[1]))
for number in count():
    batch = Batch()
    for seq in range(10 * number + 1, 10 * number + 11):
        one = turn(seq, seq)
        batch.updates += one.updates
        batch.tasks += one.tasks
    database.store(batch, sync=number % 7 == 0)
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 300])
def test_a_process_killed_while_it_stores_leaves_whole_turns_and_all_acknowledged_rows(path: Path, lines: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STORES_FOR_EVER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdout is not None
    said = -1
    for line in process.stdout:
        said = int(line)
        if said == lines:
            process.send_signal(signal.SIGKILL)  # it stores rows until then
    process.wait()
    process.stdout.close()
    database = Database(path)
    events, updates = list(database.events_after(0)), list(database.updates_after(0))
    assert len(events) == len(updates) == len(list(database.tasks()))
    assert len(events) % 10 == 0
    assert len(events) >= 10 * (said + 1)
    assert database.conservation().pending == len(updates)
    database.close()
