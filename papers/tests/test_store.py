"""The store of results: persistence, one writer, concurrent readers."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from helpers import stand_in
from unstale.errors import UserError
from unstale_papers.jobs import Job, Place, jobs
from unstale_papers.record import Record
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale
from unstale_papers.store import DATABASE, Result, Store


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """Jobs of a preset."""
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)
    of = stand_in.preset(tmp_path)
    return jobs(of, of.cells, seeds=[0], scale=Scale(), place=Place(cache="/data"))


def result(accuracy: float, seconds: float = 1.5) -> Result:
    record = Record(accuracy_E=[accuracy, float("nan")], loss_E=[float("inf")], found={"a": [1, None]})
    return Result(record=record.to_json(), seconds=seconds, machine="one core", versions="unstale 1")


def test_stored_results_are_read_after_reopening(tmp_path: Path, three: list[Job]) -> None:
    with Store.open(tmp_path / "new" / "store") as store:
        assert not store.has(three[0].digest)
        store.keep(three[0], result(0.25))
        assert store.has(three[0].digest)
    with Store.open(tmp_path / "new" / "store") as store:
        (key, record), *others = store.records(three).items()
        assert key == ("method=alpha", 0)
        assert not others
        assert record.accuracy_E[0] == 0.25
        assert repr(record.accuracy_E[1]) == "nan"
        assert record.loss_E == [float("inf")]
        assert record.found == {"a": [1, None]}
        assert store.seconds() == [(three[0].configuration, 1.5)]


def test_failures_are_counted_until_success(tmp_path: Path, three: list[Job]) -> None:
    with Store.open(tmp_path) as store:
        store.fail(three[0], "first")
        store.fail(three[0], "second")
        ((key, failure),) = store.failures(three).items()
        assert key == ("method=alpha", 0)
        assert (failure.name, failure.traceback, failure.times) == (three[0].name, "second", 2)
        assert failure.last.endswith("Z")
        assert not store.has(three[0].digest)
        store.keep(three[0], result(0.5))
        assert store.failures(three) == {}


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path, three: list[Job]) -> None:
    with Store.open(tmp_path) as store:
        with pytest.raises(UserError) as caught:
            Store.open(tmp_path)
        assert str(caught.value) == (
            f"the store {tmp_path} is in use by another `unstale` that computes; wait for it, end it, or name another "
            "folder with --store"
        )
        reader = Store.look(tmp_path)
        assert reader is not None
        with reader:
            assert reader.records(three) == {}
            store.keep(three[1], result(0.5))
            assert list(reader.records(three)) == [("method=beta", 0)]
    Store.open(tmp_path).close()


def test_an_empty_folder_has_no_results(tmp_path: Path) -> None:
    assert Store.look(tmp_path) is None
    (tmp_path / DATABASE).touch()
    assert Store.look(tmp_path) is None, "an engine was killed at its start"
    Store.open(tmp_path).close()
    reader = Store.look(tmp_path)
    assert reader is not None
    reader.close()


def test_a_folder_with_other_files_is_not_a_store(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / DATABASE)
    other.execute("CREATE TABLE t (a)")
    other.close()
    with pytest.raises(UserError, match="is another program's database; name another folder with --store"):
        Store.open(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",), "the database is unchanged"
    (tmp_path / DATABASE).write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(UserError, match=r"results.db is damaged \(file is not a database\)"):
        Store.open(tmp_path)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as later:
        later.execute("PRAGMA user_version = 99")
    later.close()
    with pytest.raises(UserError, match="has format 99, expected 1"):
        Store.look(tmp_path)


def test_a_torn_record_is_reported(tmp_path: Path, three: list[Job]) -> None:
    with Store.open(tmp_path) as store:
        store.keep(three[0], result(0.5))
        store._connection.execute("UPDATE results SET record = x'00'")
        with pytest.raises(UserError, match="is damaged"):
            store.records(three)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot open the store "):
        Store.open(tmp_path / "file" / "store")
