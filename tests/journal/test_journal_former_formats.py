"""Run directories of database formats 3 and 4, which older versions wrote, are read as they are and resumed."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.archives import open_archive
from support.running import RunningServer, small
from support.wire import RawClient
from unstale.cli import main
from unstale.journal.database import Conservation, Database
from unstale.journal.restore import restore
from unstale_client.disk import DamagedError

pytestmark = pytest.mark.network

FORMATS = (3, 4)
DIGESTS_7 = {
    3: "d22c0745a3a841c436f82ee60402c38a9d181d9016ac1d85e7d4afc8c2004dbb",
    4: "f8706cfb7c49c4e77c293961d16592bf6ad068657460a11aa2488e4afa96d930",
}  # as `sqlite3` shows them
STATE = "seq, handle, segment, round, position, staleness, weight"


@pytest.fixture(params=FORMATS)
def former(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def run(tmp_path: Path, former: int) -> Path:
    with open_archive(Path(__file__).parent / f"format-{former}" / f"run-{former}.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path / "run"


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{path / 'run.db'}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def format_of(path: Path) -> int:
    ((version,),) = rows(path, "PRAGMA user_version")
    return int(version)


def convert(path: Path) -> None:
    Database(path / "run.db").close()


def test_readers_read_it_as_it_is(run: Path, former: int) -> None:
    before = (run / "run.db").read_bytes()
    database = Database(run / "run.db", read_only=True)
    assert database.conservation() == Conservation(received=16, aggregated=14, pending=1, rejected=1)
    updates = list(database.updates_after(0))
    assert [update.staged.task_id for update in updates] == [1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 23, 22]
    assert any(update.norms is not None for update in updates) == (former == 4)
    assert {tuple(update.staged.metrics) for update in updates} == {()}
    assert [(row.version, list(row.metrics)) for row in database.evaluations()] == [
        (version, ["accuracy", "loss"]) for version in (0, 2, 4, 6)
    ]
    assert {tuple(row.metrics.items()) for row in database.own_evaluations()} == {(("accuracy", 0.25), ("loss", 1.5))}
    last = list(database.rounds())[-1]
    assert last.digest == DIGESTS_7[former]
    assert [(member.handle, member.staleness, member.weight) for member in last.members] == [(12, 0, 0.5), (13, 0, 0.5)]
    database.close()
    assert (run / "run.db").read_bytes() == before


def test_it_is_replayed_and_explained(run: Path, former: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["replay", str(run)]) == 0
    assert "1 round, 2 updates, all digests equal" in capsys.readouterr().out
    assert main.run(["explain", str(run), "7"]) == 0
    assert DIGESTS_7[former][:12] in capsys.readouterr().out


def test_a_server_converts_it_and_resumes(run: Path) -> None:
    settings = small(
        clients=3,
        rounds=20,
        evaluate_every=2,
        evaluate_clients_every=3,
        trigger={"name": "k-async", "k": 2},
        training={"learning_rate": 0.5, "steps": 1, "batch_size": 8},
        run={"directory": str(run), "free_bytes_min": 0, "checkpoint_every": 2},
    )
    with RunningServer(settings) as server, RawClient(server.address, 0) as a, RawClient(server.address, 2) as c:
        assert server.state()["version"] == 7
        assert server.state()["pending"] == 1
        a.join()
        c.join()
        task, _ = c.task()
        assert c.answer(task, np.full(650, 0.1), kind="delta").outcome == "accepted"
        task, _ = a.task()
        assert task.version == 8
    assert format_of(run) == 5
    assert rows(run, "SELECT count(*) FROM updates WHERE round = 8") == [(2,)]
    assert main.run(["replay", str(run)]) == 0


def test_the_conversion_keeps_every_row_and_happens_once(run: Path) -> None:
    before = {
        query: rows(run, query)
        for query in (
            f"SELECT {STATE}, loss, local_rate, offset, size_bytes, checksum FROM updates",
            "SELECT version, closed_s, rate_factor, overflowed, digest, compensation FROM rounds",
            "SELECT version, at_s, accuracy, loss, class_accuracy, evaluate_s FROM evaluations",
            "SELECT seq, client_id, version, accuracy, loss, examples FROM own_evaluations",
            "SELECT * FROM events",
            "SELECT * FROM tasks",
            "SELECT * FROM meta WHERE key != 'totals'",
            "SELECT * FROM clients",
        )
    }
    convert(run)
    assert format_of(run) == 5
    assert {query: rows(run, query) for query in before} == before
    converted = rows(run, "SELECT * FROM updates")
    schema = rows(run, "SELECT type, name, sql FROM sqlite_master ORDER BY name")
    convert(run)
    assert rows(run, "SELECT * FROM updates") == converted
    fresh = run.with_name("fresh")
    fresh.mkdir()
    convert(fresh)
    assert rows(fresh, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == schema


def test_a_restore_converts_it(run: Path) -> None:
    found = restore(run)
    assert (found.version, found.lost_events) == (7, 0)
    assert format_of(run) == 5


_KILLED = """
import os, signal, sys
from pathlib import Path
from unstale.journal.database import Database
from unstale.journal.sqlite import Connection

insert = Connection.insert

def killed(self, table, values, **options):
    insert(self, table, list(values)[:9], **options)
    os.kill(os.getpid(), signal.SIGKILL)

Connection.insert = killed
Database(Path(sys.argv[1]))
"""


def test_a_process_that_is_killed_while_it_converts_changes_nothing(run: Path, former: int) -> None:
    before = rows(run, "SELECT * FROM updates")
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(run / "run.db")], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert format_of(run) == former
    assert rows(run, "SELECT * FROM updates") == before
    assert rows(run, "SELECT name FROM sqlite_master WHERE name LIKE 'former%'") == []
    convert(run)
    assert format_of(run) == 5


def test_a_damaged_row_is_reported_and_nothing_is_converted(run: Path, former: int) -> None:
    with sqlite3.connect(run / "run.db") as connection:
        connection.execute("UPDATE updates SET loss = 2.0 WHERE handle = 3")
    connection.close()
    with pytest.raises(DamagedError, match="updates seq 8 does not match its checksum"):
        convert(run)
    assert format_of(run) == former


@pytest.mark.parametrize("former", [4])
def test_a_row_that_was_deleted_since_the_last_server_is_told_and_nothing_is_converted(run: Path, former: int) -> None:
    with sqlite3.connect(run / "run.db") as connection:
        connection.execute("DELETE FROM own_evaluations WHERE version = 6")
    connection.close()
    with pytest.raises(DamagedError, match="table own_evaluations has 2 rows, and had 4 when the last server ended"):
        convert(run)
    assert format_of(run) == former
