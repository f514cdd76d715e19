"""Every stored byte is covered: `unstale verify` finds each change, and none ends a command in a traceback."""

import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.running import RunningServer, small
from support.wire import RawClient
from unstale.cli import main
from unstale.config import Settings
from unstale.errors import UserError
from unstale.journal import row_codec
from unstale.journal.database import TOTALS, Database
from unstale.journal.row_codec import Codec
from unstale.journal.verify import verify
from unstale.seeds import Stream, stream
from unstale_proto.messages import OwnEvaluation

pytestmark = pytest.mark.network

ONES = np.ones(650, dtype="<f4")
TABLES = ("meta", "events", "tasks", "updates", "rounds", "evaluations", "own_evaluations", "checkpoints")


def settings_in(folder: Path) -> Settings:
    """A run of two clients; two updates make a version, and every second version a checkpoint."""
    return small(
        clients=2,
        rounds=1000,
        evaluate_every=2,
        evaluate_clients_every=1,
        trigger={"name": "k-async", "k": 2},
        run={"directory": str(folder), "free_bytes_min": 0, "checkpoint_every": 2},
    )


def serve(folder: Path, versions: int, copy: Path | None = None) -> None:
    """Make some versions, and end with an update that waits. copy: of the directory while the server lives."""
    with (
        RunningServer(settings_in(folder)) as server,
        RawClient(server.address, 0) as a,
        RawClient(server.address, 1) as b,
    ):
        a.join()
        b.join()
        first, second = a.task()[0], b.task()[0]
        for _ in range(versions):
            for client, task in ((a, first), (b, second)):
                own = OwnEvaluation(accuracy=0.25, loss=1.5, examples=8)
                evaluation = own if task.evaluate else None
                assert client.answer(task, ONES, evaluation=evaluation).outcome == "accepted"
            first, second = a.task()[0], b.task()[0]
        assert a.answer(first, ONES).outcome == "accepted"
        if copy is not None:
            shutil.copytree(folder, copy)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory that a server left in order."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    serve(folder, 5)
    return folder


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    """A copy, without the totals, which a server that is killed does not leave."""
    shutil.copytree(ended, tmp_path / "run")
    change(tmp_path / "run", f"DELETE FROM meta WHERE key = '{TOTALS}'")
    return tmp_path / "run"


def change(run: Path, statement: str) -> None:
    with sqlite3.connect(run / "run.db") as connection:
        connection.execute(statement)
    connection.close()


def content(run: Path) -> list[list[tuple[Any, ...]]]:
    """Every row of every table; the columns too, so that a damaged schema differs."""
    connection = sqlite3.connect(f"file:{run / 'run.db'}?mode=ro&immutable=1", uri=True)
    try:
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES]
    finally:
        connection.close()


def test_a_run_that_ended_in_order_is_whole(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in ended.rglob("*") if path.is_file()}
    assert main.run(["verify", str(ended), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["damages"], found["notes"]) == ([], [])
    assert found["updates"] == 11
    assert {name: found["rows"][name] for name in ("tasks", "updates", "rounds")} == {
        "tasks": 12,
        "updates": 11,
        "rounds": 5,
    }
    assert found["files"] == {"settings": 1, "database": 2, "segments": 1, "checkpoints": 2}
    assert found["bytes"]["segments"] == 16 + 11 * 650 * 4
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in ended.rglob("*") if path.is_file()}
    assert after == before


def test_a_run_whose_server_was_killed_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path / "run", 3, tmp_path / "killed")
    assert main.run(["verify", str(tmp_path / "killed")]) == 0
    out = capsys.readouterr().out
    assert "no damage" in out
    assert "gives the run another id: its files are copies" in out


def test_a_run_is_verified_while_its_server_writes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (
        RunningServer(settings_in(run)) as server,
        RawClient(server.address, 0) as a,
        RawClient(server.address, 1) as b,
    ):
        a.join()
        b.join()
        for _ in range(4):
            for client in (a, b):
                assert client.answer(client.task()[0], ONES).outcome == "accepted"
            assert verify(run).damages == []


def test_a_folder_of_something_else_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["verify", str(tmp_path)]) == 2
    assert "is not the directory of a run" in capsys.readouterr().err


def flips(run: Path) -> Iterator[tuple[Path, int, int]]:
    """Bits of every file, drawn by seed: file, byte, bit."""
    rng = stream(0, Stream.TOXICS, 23, 7)
    counts = {"run.db": 120, "config.yaml": 8, "run.db-newest": 4, ".rows": 8, ".safetensors": 6}
    for path in sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size):
        count = next(count for name, count in counts.items() if path.name.endswith(name))
        for _ in range(count):
            yield path, int(rng.integers(path.stat().st_size)), int(rng.integers(8))


def test_every_flipped_bit_is_found_or_changes_nothing(ended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    before = content(run)
    found: Counter[str] = Counter()
    for path, at, bit in flips(run):
        with path.open("r+b") as opened:
            opened.seek(at)
            (byte,) = opened.read(1)
            opened.seek(at)
            opened.write(bytes([byte ^ 1 << bit]))
        if verify(run).damages:
            found[path.name] += 1
        else:
            assert path.name == "run.db", (path, at, bit)
            assert content(run) == before, (path, at, bit)
        with path.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([byte]))
    assert verify(run).damages == []
    assert found["run.db"] > 15  # the other flips hit free space
    assert found.total() - found["run.db"] == 8 + 4 + 8 + 2 * 6


def resealed(codec: Codec[Any], name: str, where: str, **values: Any) -> Callable[[Path], None]:
    """Change columns of a row, and compute its checksums again."""

    table = codec.table

    def edit(run: Path) -> None:
        connection = sqlite3.connect(run / "run.db")
        cursor = connection.execute(f"{table.select} WHERE {where}")
        columns = [column for column, *_ in cursor.description]
        row = table.opened(cursor.fetchone())
        names = [column for column in columns if not column.endswith("_checksum")]
        changed = tuple(values.get(column, value) for column, value in zip(names, row, strict=True))
        connection.execute(f"DELETE FROM {name} WHERE {where}")
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", table.sealed(changed))
        connection.commit()
        connection.close()

    return edit


def executed(statement: str) -> Callable[[Path], None]:
    return lambda run: change(run, statement)


_LATE = "handle = (SELECT max(handle) - 2 FROM updates)"
_COPIED = (
    "INSERT INTO updates SELECT (SELECT max(seq) + 2 FROM updates), at_s, client_id, task_id, base_version, outcome, "
    "reason, num_examples, batch_examples, loss, local_rate, norm, norm_buffers, norm_extra, 1000, offset, size_bytes, "
    "checksum, row_checksum, segment, round, position, staleness, weight, state_checksum FROM updates WHERE seq = 4"
)
EDITS = [
    (executed("UPDATE updates SET segment = 7 WHERE seq = 4"), "updates seq 4 does not match its checksum"),
    (executed("UPDATE updates SET staleness = 1 WHERE seq = 4"), "updates seq 4 does not match its checksum"),
    (executed("UPDATE updates SET weight = 0.75 WHERE seq = 4"), "updates seq 4 does not match its checksum"),
    (executed("UPDATE updates SET round = 2 WHERE seq = 4"), "updates seq 4 does not match its checksum"),
    (executed("UPDATE updates SET position = 1 - position WHERE round = 1"), "does not match its checksum"),
    (executed("UPDATE tasks SET client_id = 0 WHERE task_id = 2"), "tasks task_id 2 does not match its checksum"),
    (executed("UPDATE own_evaluations SET loss = 0.5"), "own_evaluations seq .* does not match its checksum"),
    (executed(_COPIED), "does not match its checksum"),
    (executed(f"DELETE FROM updates WHERE {_LATE}"), "event .* is missing"),
    (executed("DELETE FROM updates WHERE round = 2 AND position = 0"), "updates of round 2 do not have the positions"),
    (executed("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)"), "is missing"),
    (executed("DELETE FROM tasks WHERE task_id = 2"), "task 2, which is not in the table tasks"),
    (executed("DELETE FROM rounds WHERE version = 2"), "round 2, which is not in the table rounds"),
    (executed("DELETE FROM rounds WHERE version = 5"), "round 5, which is not in the table rounds"),
    (resealed(row_codec.UPDATES, "updates", "seq = 4", staleness=1), "updates seq 4 has staleness 1"),
    (resealed(row_codec.UPDATES, "updates", "seq = 4", round=77), "round 77, which is not in the table rounds"),
    (resealed(row_codec.UPDATES, "updates", "seq = 4", round=2, staleness=1), "do not have the positions"),
    (resealed(row_codec.UPDATES, "updates", "seq = 4", segment=7), "00000007.rows is missing"),
    (
        resealed(row_codec.UPDATES, "updates", "seq = 4", round=None, position=None, staleness=None, weight=None),
        "waits for a round",
    ),
    (resealed(row_codec.TASKS, "tasks", "task_id = 2", version=3), "another client or version than tasks task_id 2"),
    (resealed(row_codec.EVENTS, "events", "kind = 'RoundApplied'", kind="Nonsense"), "events seq .* cannot be read"),
    (resealed(row_codec.EVENTS, "events", "kind = 'RoundApplied'", fields="{}"), "events seq .* cannot be read"),
    (resealed(row_codec.EVENTS, "events", "kind = 'RoundApplied'", fields="{"), "events seq .* cannot be read"),
    (
        resealed(row_codec.EVENTS, "events", "kind = 'RoundApplied'", fields='{"version": 99}'),
        "version 99, which is not in|has no event RoundApplied",
    ),
    (resealed(row_codec.ROUNDS, "rounds", "version = 5", compensation="{}"), "rounds version 5 cannot be read"),
    (resealed(row_codec.CHECKPOINTS, "checkpoints", "version = 4", seq=1000), "checkpoints version 4 is newer"),
    (resealed(row_codec.EVALUATIONS, "evaluations", "version = 4", version=40), "evaluations version 40"),
    (
        resealed(row_codec.OWN_EVALUATIONS, "own_evaluations", "seq = 10", client_id=7),
        "own_evaluations seq 10 does not belong",
    ),
]


_FOUND_BY_A_SERVER = {"waits for a round", "00000007.rows is missing"}  # `explain` reads neither


@pytest.mark.parametrize(
    ("edit", "finds"), EDITS, ids=[f"{number}-{text[:40]}" for number, (_, text) in enumerate(EDITS)]
)
def test_an_edited_row_is_reported_in_one_message(
    edit: Callable[[Path], None], finds: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(run)
    for command in ("verify", "replay", "explain"):
        code = main.run([command, str(run)])  # which raises no UserError
        captured = capsys.readouterr()
        if command == "verify":
            assert code == 1
            assert any(_matches(finds, line) for line in captured.out.splitlines()), captured.out
        elif finds not in _FOUND_BY_A_SERVER:
            assert code == 2
            assert _matches(finds, captured.err)
    with pytest.raises(UserError, match=finds) as raised:
        RunningServer(settings_in(run))
    assert str(run) in str(raised.value)
    assert "from a copy" in str(raised.value)


def _matches(pattern: str, line: str) -> bool:
    return re.search(pattern, line) is not None


@pytest.mark.parametrize(
    ("statement", "finds"),
    [
        ("DELETE FROM evaluations WHERE version = 4", "table evaluations has 2 rows, and had 3"),
        ("DELETE FROM own_evaluations WHERE seq = 10", "table own_evaluations has"),
        ("DELETE FROM tasks WHERE task_id = (SELECT max(task_id) FROM tasks)", "table tasks has 11 rows, and had 12"),
        ("DELETE FROM checkpoints WHERE version = 4", "table checkpoints has 1 rows, and had 2"),
    ],
)
def test_a_row_that_no_other_needs_is_missed(statement: str, finds: str, ended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    change(run, statement)
    assert any(finds in damage for damage in verify(run).damages)
    with pytest.raises(UserError, match=finds):
        RunningServer(settings_in(run))


def test_a_row_that_was_changed_with_its_checksum_is_found(ended: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    resealed(row_codec.UPDATES, "updates", "seq = 4", num_examples=1000)(run)
    (damage,) = verify(run).damages
    assert "rows of table updates were changed after the last server had ended" in damage


def test_every_damage_is_listed(ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(ended, run)
    change(run, "UPDATE tasks SET client_id = 5 WHERE task_id < 4")
    (checkpoint, *_) = sorted((run / "checkpoints").iterdir())
    checkpoint.unlink()
    assert main.run(["verify", str(run)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "tasks task_id" in line][2].count(
        "tasks task_id 3 does not match its checksum"
    ) == 1
    assert any(f"checkpoint {checkpoint} is missing; put it back from a copy" in line for line in lines)
    assert lines[-1] == "4 damages"


# --- config.yaml ---


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("", r"config\.yaml was changed: clients is"),
        ("clients: [", r"settings of the run cannot be read"),
        (None, r"config\.yaml is missing beside run\.db"),
    ],
)
def test_lost_settings_are_reported_and_restored(
    text: str | None, finds: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run / "config.yaml"
    before = config.read_bytes()
    if text is None:
        config.unlink()
    else:
        config.write_text(text)
    for command in ("verify", "replay", "explain"):
        assert main.run([command, str(run)]) == (1 if command == "verify" else 2)
        captured = capsys.readouterr()
        assert _matches(f"{finds}.*unstale restore", (captured.out + captured.err).replace("\n", " "))
    with pytest.raises(UserError, match=rf"{finds}.*unstale restore"):
        RunningServer(settings_in(run))
    assert main.run(["restore", str(run)]) == 0
    assert config.read_bytes() == before
    assert verify(run).damages == []


def test_a_change_of_a_setting_that_may_differ_is_stored(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("retry_s: 3600.0", "retry_s: 1800.0"))
    assert "with the same values of all keys that matter" in verify(run).damages[0]
    with RunningServer(settings_in(run)):
        pass
    assert "retry_s: 1800.0" in config.read_text()
    assert verify(run).damages == []


def test_the_settings_in_the_database_are_the_text_of_the_file(ended: Path) -> None:
    database = Database(ended / "run.db", read_only=True)
    assert database.meta("config") == (ended / "config.yaml").read_text()
    database.close()
