"""`unstale rollback`: a run resumes from an earlier version, without the updates since, and without named clients."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.disks import fill, small_disk
from support.running import PATIENCE_S, RunningServer, small
from support.wire import RawClient
from unstale.cli import main
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.errors import UserError
from unstale.journal import rollback
from unstale.journal.database import SYNCED, Database
from unstale.journal.restore import restore
from unstale.journal.resumption import GIVEN_UP
from unstale.journal.rollback import roll_back
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Stop

pytestmark = pytest.mark.network

D = 650
ONES = np.ones(D, dtype="<f4")


def settings_in(folder: Path, *, run: dict[str, Any] | None = None, **changes: Any) -> Settings:
    """A run whose every update makes a version."""
    section = {"directory": str(folder), "free_bytes_min": 0, "checkpoint_every": 4, **(run or {})}
    changes = {"clients": 1, "rounds": 1000, "trigger": {"name": "async"}, **changes}
    return small(run=section, **changes)


def versions_more(settings: Settings, count: int, scale: float = 1.0) -> str:
    """Serve until `count` more versions are made, of deltas of this scale; the run's id."""
    with RunningServer(settings) as server, RawClient(server.address, 0) as client:
        run_id = client.join().run_id
        for _ in range(count):
            task, _ = client.task()
            assert client.answer(task, ONES * np.float32(scale)).outcome == "accepted"
        client.task()
    return run_id


def digests_in(folder: Path) -> dict[int, str]:
    """Digest of each version above 0."""
    database = Database(folder / "run.db", read_only=True)
    try:
        return {row.version: row.digest for row in database.rounds()}
    finally:
        database.close()


def synced_in(folder: Path) -> int:
    """Last event that a power failure leaves."""
    database = Database(folder / "run.db", read_only=True)
    try:
        return int(database.meta(SYNCED) or 0)
    finally:
        database.close()


def without_server(folder: Path) -> set[str]:
    """The files that define a run."""
    return {str(path.relative_to(folder)) for path in folder.glob("*/*") if path.is_file()}


def trains(server: RunningServer, settings: Settings, client_ids: Sequence[int]) -> None:
    """Honest clients that train until the run is over."""
    with_limit = [
        ClientProcess(
            server=server.address,
            client_ids=range(client_id, client_id + 1),
            prepare=lambda welcome: training_context_of(welcome, settings),
            heartbeat_s=settings.server.heartbeat_s,
            linger_s=settings.server.linger_s,
        )
        for client_id in client_ids
    ]
    threads = [threading.Thread(target=one.run, daemon=True) for one in with_limit]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)


# --- the version ---


@pytest.mark.parametrize("version", [8, 9, 6], ids=["of a checkpoint", "after one", "between two"])
def test_a_run_resumes_from_a_version_with_the_same_model(tmp_path: Path, version: int) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, run={"keep_updates": True})
    run_id = versions_more(settings, 10)
    before = digests_in(run)
    done = roll_back(run, version)
    assert synced_in(run) == 2 * version + 1  # a hello, and an update and a round for each version
    assert (done.version, done.former_version, done.updates) == (version, 10, 10 - version)
    assert done.former_run_id == run_id != done.run_id
    assert digests_in(run) == {made: before[made] for made in range(1, version + 1)}
    resumed = versions_more(settings, 10 - version)
    assert resumed == done.run_id
    assert digests_in(run) == before  # the same updates again make the same versions
    assert main.run(["replay", str(run)]) == 0
    assert main.run(["explain", str(run), str(version)]) == 0
    assert main.run(["explain", str(run)]) == 0


def test_a_run_goes_back_to_its_beginning(tmp_path: Path) -> None:
    run = tmp_path / "run"
    versions_more(settings_in(run), 10)
    before = digests_in(run)
    assert roll_back(run, 0).updates == 10
    assert digests_in(run) == {}
    versions_more(settings_in(run), 10)
    assert digests_in(run) == before


def test_a_run_goes_back_twice(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, run={"keep_updates": True, "checkpoint_every": 1000})
    versions_more(settings, 10)
    before = digests_in(run)
    roll_back(run, 7)
    versions_more(settings, 2, scale=2.0)
    roll_back(run, 8)
    roll_back(run, 7)
    with pytest.raises(UserError, match=r"^--to is 6, expected a version .*: 0 or 7$"):
        roll_back(run, 6)
    versions_more(settings, 3)
    assert digests_in(run) == before
    assert main.run(["replay", str(run)]) == 0


@pytest.mark.parametrize(("version", "first"), [(0, 14), (7, 21)])
def test_a_version_that_a_resumed_run_dropped_is_no_target_of_a_rollback(
    tmp_path: Path, version: int, first: int
) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, run={"checkpoint_every": 7})
    versions_more(settings, 10)
    roll_back(run, version)
    assert main.run(["explain", str(run)]) == (0 if version else 2)  # no round made version 0
    versions_more(settings, 20)
    last = version + 20
    with pytest.raises(UserError, match=rf"^--to is 8, expected a version .*: 0 or {first} to {last}$"):
        roll_back(run, 8)
    roll_back(run, last - 2)
    assert main.run(["replay", str(run)]) == 0
    assert main.run(["explain", str(run)]) == 0


def test_a_version_that_cannot_be_had_is_refused_with_those_that_can(tmp_path: Path) -> None:
    run = tmp_path / "run"
    versions_more(settings_in(run), 13)
    files, digests = without_server(run), digests_in(run)
    for version in (11, 14, -1):
        with pytest.raises(UserError, match=rf"^--to is {version}, expected .*: 0 or 12 to 13$"):
            roll_back(run, version)
    assert (without_server(run), digests_in(run)) == (files, digests)


def test_updates_that_waited_are_dropped_and_clients_gather_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, clients=2, trigger={"name": "k-async", "k": 2})
    with RunningServer(settings) as server, RawClient(server.address, 0) as a, RawClient(server.address, 1) as b:
        a.join()
        b.join()
        for _ in range(2):
            for client in (a, b):
                task, _ = client.task()
                assert client.answer(task, ONES).outcome == "accepted"
        task, _ = a.task()
        assert a.answer(task, ONES).outcome == "accepted"  # waits for another
    done = roll_back(run, None)
    assert (done.version, done.updates) == (2, 1)
    database = Database(run / "run.db", read_only=True)
    found, reasons = database.conservation(), [row.reason for row in database.updates_after(0) if row.reason]
    database.close()
    assert (found.received, found.aggregated, found.pending, found.rejected) == (5, 4, 0, 1)
    assert reasons == ["rolled-back"]
    with RunningServer(settings) as server, RawClient(server.address, 0) as a, RawClient(server.address, 1) as b:
        assert server.state()["pending"] == 0
        a.join()
        b.join()
        for client in (a, b):
            task, _ = client.task()
            assert task.version == 2
            assert client.answer(task, ONES).outcome == "accepted"
        assert a.task()[0].version == 3
    assert main.run(["replay", str(run)]) == 0


def test_the_copy_is_the_run_as_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 10)
    before = digests_in(run)
    done = roll_back(run, 9)
    versions_more(settings_in(run), 20, scale=2.0)
    assert done.copy == run / "set-aside" / "1"
    assert digests_in(done.copy) == before
    assert main.run(["replay", str(done.copy)]) == 0
    done.copy.rename(tmp_path / "undone")
    undone = versions_more(settings_in(tmp_path / "undone"), 1)
    assert undone not in (run_id, done.run_id)
    assert max(digests_in(tmp_path / "undone")) == 11


def test_a_disk_too_full_for_the_copy_leaves_the_run_unchanged(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 * 1024 * 1024) as disk:
        run = disk / "run"
        versions_more(settings_in(run), 10)
        files, digests = without_server(run), digests_in(run)
        other = fill(disk)
        os.truncate(other, other.stat().st_size - 64 * 1024)
        with pytest.raises(UserError, match="the disk is full; make room"):
            roll_back(run, 9)
        other.unlink()
        assert (without_server(run), digests_in(run)) == (files, digests)
        versions_more(settings_in(run), 1)
        assert max(digests_in(run)) == 11


class KilledError(Exception):
    """In the place of a kill."""


def killed(*_: object) -> None:
    raise KilledError


def test_a_rollback_that_is_killed_before_it_is_stored_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 10)
    digests = digests_in(run)
    with monkeypatch.context() as patched:
        patched.setattr(Database, "rewind", killed)
        with pytest.raises(KilledError):
            roll_back(run, 8)
    assert digests_in(run) == digests
    assert versions_more(settings_in(run), 1) == run_id
    assert roll_back(run, 11).former_version == 11


def test_a_rollback_that_is_killed_once_it_is_stored_is_ended_by_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run_id = versions_more(settings_in(run), 10)
    with monkeypatch.context() as patched:
        patched.setattr(rollback, "_delete_newer", killed)
        with pytest.raises(KilledError):
            roll_back(run, 8)
    with pytest.raises(UserError, match=r"older than the files beside it: .*`unstale restore "):
        RunningServer(settings_in(run))
    assert restore(run).version == 8
    assert versions_more(settings_in(run), 1) != run_id
    assert max(digests_in(run)) == 9


def test_a_restore_needs_the_checkpoint_of_a_rollback(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, run={"keep_updates": True})
    versions_more(settings, 10)
    roll_back(run, 8)
    (path,) = (run / "checkpoints").glob("*8*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"8.safetensors does not match its checksum"):
        RunningServer(settings)
    with pytest.raises(UserError, match=r"8.safetensors does not match its checksum"):
        restore(run)


def test_a_rollback_while_a_server_runs_is_refused(tmp_path: Path) -> None:
    with RunningServer(settings_in(tmp_path / "run")), pytest.raises(UserError, match="is in use by another process"):
        roll_back(tmp_path / "run", 0)


# --- the clients ---


def test_an_excluded_client_is_refused_until_it_is_admitted_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, clients=2)
    with RunningServer(settings) as server, RawClient(server.address, 0) as a, RawClient(server.address, 1) as b:
        a.join()
        b.join()
        a.task()
    assert roll_back(run, 0, without=[1]).excluded == (1,)
    with RunningServer(settings) as server, RawClient(server.address, 0) as a, RawClient(server.address, 1) as b:
        b.say_hello()
        refused = b.hear(Error)
        assert refused.reason is Reason.UNKNOWN_CLIENT
        assert "client 1 is excluded" in refused.message
        a.join()
        a.task()  # the run does not wait for the other one
    assert roll_back(run, None, readmit=[1]).excluded == ()
    with RunningServer(settings) as server, RawClient(server.address, 1) as b:
        b.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do, expected --to VERSION, --without CLIENT or --readmit CLIENT"),
        (["--without", "2"], "--without is 2, expected the id of a client, 0 to 1"),
        (["--without", "0", "--readmit", "0"], "client 0 is named by --without and --readmit, expected one of them"),
        (
            ["--without", "0", "--without", "1"],
            "--without excludes all 2 clients of the run, expected at least one that takes part",
        ),
    ],
)
def test_arguments_that_cannot_be_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with RunningServer(settings_in(tmp_path / "run", clients=2)):
        pass
    assert main.run(["rollback", str(tmp_path / "run"), *arguments]) == 2
    assert capsys.readouterr().err == f"unstale: {message}\n"


# --- a run that was given up ---


def fail_ten_times(settings: Settings) -> str:
    """An abandoned run; the error that its server ends with."""
    running = RunningServer(settings)
    with running, RawClient(running.address, 0) as client:
        client.join()
        for _ in range(10):
            task, _ = client.task()
            assert client.answer(task, ONES * np.float32("nan")).reason is Reason.NON_FINITE
        client.hear(Stop)
        with pytest.raises(UserError) as caught:
            running.end()
        running.forgive()
    return str(caught.value)


def forget_that_it_was_given_up(folder: Path) -> None:
    database = Database(folder / "run.db")
    database.set_meta({GIVEN_UP: ""})
    database.close()


def test_a_run_that_was_given_up_says_so_and_how_to_go_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings = settings_in(run, server={"retry_s": 0.001, "quarantine_after": None})
    versions_more(settings, 6)
    message = fail_ten_times(settings)
    way_out = f"`unstale rollback {run} --to VERSION` resumes it from an earlier version (0 or 4 to 6)"
    assert message.startswith("training diverges: the last 10 tasks")
    assert way_out in message
    forget_that_it_was_given_up(run)  # as a server of an older version left it
    for start in ("training diverges: ", "the run in .* was given up: training diverges: "):
        with pytest.raises(UserError, match=f"^{start}") as again:
            RunningServer(settings)
        assert way_out in str(again.value)
    assert main.run(["rollback", str(run), "--to", "6"]) == 0
    out = capsys.readouterr().out
    assert "version 6, before 6: 0 accepted updates are not used any more" in out
    versions_more(settings, 2)
    assert max(digests_in(run)) == 8


@pytest.mark.slow
def test_a_poisoned_run_is_rolled_back_and_finishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One delta scaled by 1e16 ends the run; before it, and without its client, the run finishes."""
    run = tmp_path / "run"
    settings = settings_in(
        run, clients=3, min_clients=1, rounds=40, evaluate_every=40, server={"retry_s": 0.001, "norm_max": None}
    )
    running = RunningServer(settings)
    with running, RawClient(running.address, 2) as attacker, RawClient(running.address, 1) as honest:
        attacker.join()
        honest.join()
        for _ in range(10):
            task, _ = honest.task()
            assert honest.answer(task, ONES * np.float32(1e-3)).outcome == "accepted"
        task, _ = attacker.task()
        assert attacker.answer(task, ONES * np.float32(1e16)).outcome == "accepted"
        honest.task()
    poisoned = digests_in(run)
    assert len(poisoned) == 11
    assert main.run(["rollback", str(run), "--to", "10", "--without", "2"]) == 0
    with RunningServer(settings) as server:
        trains(server, settings, [0, 1])
        outcome = server.end()
    assert (outcome.reason, outcome.versions) == ("finished", 40)
    made = digests_in(run)
    assert made[10] == poisoned[10]
    assert made[11] != poisoned[11]
    assert main.run(["replay", str(run)]) == 0
    assert "all digests equal" in capsys.readouterr().out
    assert outcome.test_accuracy > 0.5
