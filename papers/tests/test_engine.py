"""The engine with real processes: each job once, failures stored, lost jobs retried, kills at any time."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from helpers import stand_in
from support.running import until
from unstale.errors import UserError
from unstale.workers.pool import Pool
from unstale_papers import pools
from unstale_papers.durations import Durations, left_s
from unstale_papers.engine import REPORT_S, Counts, Engine, Progress
from unstale_papers.jobs import Job, Place, jobs
from unstale_papers.preset import Preset
from unstale_papers.record import Record
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale
from unstale_papers.store import Store
from unstale_papers.worker import file_of, release_memory

ALL_CALLS = [f"{method} {seed}" for seed in (0, 1) for method in stand_in.METHODS]
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def _with_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)


@dataclass
class Recorder:
    """A watcher that records its calls."""

    done: dict[str, float] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    standings: list[Progress] = field(default_factory=list)

    def finished(self, job: Job, record: Record, seconds: float) -> None:
        assert job.name not in self.done
        self.done[job.name] = record.accuracy_E[0]
        self.pids.add(record.found["pid"])
        assert seconds >= 0

    def failed(self, job: Job, traceback: str) -> None:
        self.why[job.name] = traceback

    def again(self, job: Job, why: str) -> None:
        self.lost.append(why)

    def stands(self, standing: Progress) -> None:
        self.standings.append(standing)


def planned(of: Preset, seeds: int = 2) -> list[Job]:
    return jobs(of, of.cells, seeds=range(seeds), scale=Scale(), place=Place(cache="/data"))


def compute(folder: Path, wanted: list[Job], processes: int = 2, **more: Any) -> tuple[Counts, Recorder]:
    seen = Recorder()
    with Store.open(folder / "store") as store:
        return Engine(store, seen, processes=processes, **more).run(wanted), seen


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie counts as dead.
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_every_cell_and_seed_is_computed_once_and_stored(tmp_path: Path) -> None:
    wanted = planned(stand_in.preset(tmp_path))
    counts, seen = compute(tmp_path, wanted)
    assert counts == Counts(jobs=6, before=0, done=6, failed=0)
    assert sorted(stand_in.calls(tmp_path)) == sorted(ALL_CALLS)
    assert seen.done["tiny: method=gamma, seed 1"] == 2.1
    assert len(seen.pids) <= 2, "processes do one job after another"
    assert os.getpid() not in seen.pids
    last = seen.standings[-1]
    assert (last.counts, last.shares, last.left_s) == (counts, (), 0.0)
    assert max(len(one.shares) for one in seen.standings) <= 2
    with Store.open(tmp_path / "store") as store:
        assert {key: one.accuracy_E for key, one in store.records(wanted).items()} == {
            (f"method={method}", seed): [place + seed / 10]
            for place, method in enumerate(stand_in.METHODS)
            for seed in (0, 1)
        }


def test_progress_is_reported_while_workers_send_messages_continuously(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.count(0.0, REPORT_S)
    monkeypatch.setattr("unstale_papers.engine.now_s", lambda: next(minutes))
    _, seen = compute(tmp_path, planned(stand_in.preset(tmp_path), seeds=1), processes=1)
    assert [one.shares for one in seen.standings].count((0.5,)) == 3, "a minute passes at each message of a job"


def test_a_completed_job_is_not_computed_again(tmp_path: Path) -> None:
    of = stand_in.preset(tmp_path)
    compute(tmp_path, planned(of, seeds=1))
    counts, seen = compute(tmp_path, planned(of))
    assert counts == Counts(jobs=6, before=3, done=3, failed=0)
    assert set(seen.done) == {f"tiny: method={method}, seed 1" for method in stand_in.METHODS}
    assert sorted(stand_in.calls(tmp_path)) == sorted(ALL_CALLS)
    assert compute(tmp_path, planned(of))[0] == Counts(jobs=6, before=6, done=0, failed=0)


def test_the_same_cell_of_two_presets_is_computed_once(tmp_path: Path) -> None:
    one = stand_in.preset(tmp_path)
    wanted = planned(one, seeds=1) + planned(replace(one, name="other"), seeds=1)
    assert compute(tmp_path, wanted)[0] == Counts(jobs=3, before=0, done=3, failed=0)
    assert len(stand_in.calls(tmp_path)) == 3


def test_a_failure_is_stored_with_its_traceback_and_other_jobs_continue(tmp_path: Path) -> None:
    wanted = planned(stand_in.preset(tmp_path, beta="fails"), seeds=1)
    counts, seen = compute(tmp_path, wanted, processes=1)
    assert counts == Counts(jobs=3, before=0, done=2, failed=1)
    with Store.open(tmp_path / "store") as store:
        ((key, failure),) = store.failures(wanted).items()
    assert key == ("method=beta", 0)
    assert failure.traceback == seen.why["tiny: method=beta, seed 0"]
    assert failure.traceback.startswith("Traceback (most recent call last)")
    assert "stand_in.py" in failure.traceback
    assert failure.traceback.endswith("ZeroDivisionError: as instructed\n")
    assert len(seen.pids) == 1, "a process survives a job that fails"
    compute(tmp_path, wanted)
    assert stand_in.calls(tmp_path).count("beta 0") == 2, "the failed job is retried"
    assert stand_in.calls(tmp_path).count("alpha 0") == 1


def test_a_user_error_is_stored_as_one_sentence(tmp_path: Path) -> None:
    _, seen = compute(tmp_path, planned(stand_in.preset(tmp_path, alpha="refuses"), seeds=1))
    assert seen.why == {"tiny: method=alpha, seed 0": "the data is not there; get it"}


def test_a_killed_process_loses_only_its_job_which_is_retried(tmp_path: Path) -> None:
    counts, seen = compute(tmp_path, planned(stand_in.preset(tmp_path, beta="dies once"), seeds=1))
    assert counts == Counts(jobs=3, before=0, done=3, failed=0)
    assert seen.lost == ["its process was ended by signal 9, perhaps for want of memory"]
    assert sorted(stand_in.calls(tmp_path)) == ["alpha 0", "beta 0", "beta 0", "gamma 0"]


def test_a_job_whose_process_is_killed_twice_fails(tmp_path: Path) -> None:
    counts, seen = compute(tmp_path, planned(stand_in.preset(tmp_path, alpha="dies"), seeds=1), processes=1)
    assert counts == Counts(jobs=3, before=0, done=2, failed=1)
    assert seen.why == {
        "tiny: method=alpha, seed 0": "its process was ended by signal 9, perhaps for want of memory; it was tried 2 "
        "times"
    }
    assert stand_in.calls(tmp_path).count("alpha 0") == 2


def test_a_scenario_is_in_a_file_during_its_measurement(tmp_path: Path) -> None:
    of = stand_in.preset(tmp_path)
    wanted = planned(replace(of, cells=(replace(of.cells[0], scenario="groups: []\n"),)), seeds=1)
    compute(tmp_path, wanted)
    with Store.open(tmp_path / "store") as store:
        (record,) = store.records(wanted).values()
    assert record.found["scenario"] == "groups: []\n"


def test_a_changed_data_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(b"one")
    (one,) = planned(stand_in.preset(tmp_path), seeds=1)[:1]
    wanted = [replace(one, files=(file_of(str(file)),))]
    file.write_bytes(b"other")
    assert f"{file} is not the same file" in compute(tmp_path, wanted)[1].why[one.name]
    file.unlink()
    assert f"cannot read {file}: no such file" in compute(tmp_path, wanted)[1].why[one.name]
    assert stand_in.calls(tmp_path) == []


def test_a_touched_file_is_accepted_by_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(b"one")
    wanted = [replace(one, files=(file_of(str(file)),)) for one in planned(stand_in.preset(tmp_path), seeds=1)]
    os.utime(file, ns=(1, 1))
    assert compute(tmp_path, wanted)[0].done == 3


def test_a_started_process_gets_the_first_jobs_and_ends_with_the_run(tmp_path: Path) -> None:
    first = pools.local(stand_in.MODULE)
    wanted = planned(stand_in.preset(tmp_path), seeds=1)
    counts, seen = compute(tmp_path, wanted, processes=1, first=first)
    assert (counts.done, len(seen.pids)) == (3, 1)
    assert seen.pids == {first._process.pid}
    assert not is_alive(*seen.pids)


def test_a_failed_import_in_a_worker_process_is_reported(tmp_path: Path) -> None:
    first = pools.local("support.there_is_none")
    with pytest.raises(UserError, match=r"did not begin \(its process ended with exit code 1\)"):
        compute(tmp_path, planned(stand_in.preset(tmp_path)), processes=1, first=first)


def test_a_started_process_ends_when_all_jobs_are_done(tmp_path: Path) -> None:
    compute(tmp_path, planned(stand_in.preset(tmp_path)))
    first = pools.local(stand_in.MODULE)
    counts, _ = compute(tmp_path, planned(stand_in.preset(tmp_path)), first=first)
    assert counts.done == 0
    assert not first.close.alive


def test_a_stopped_engine_resumes_later(tmp_path: Path) -> None:
    of = stand_in.preset(tmp_path, beta="waits", gamma="waits")
    seen = Recorder()
    with Store.open(tmp_path / "store") as store:
        engine = Engine(store, seen, processes=2)
        stopper = threading.Thread(target=lambda: (wait_for_calls(tmp_path, "beta 0", "gamma 0"), engine.stop()))
        stopper.start()
        assert engine.run(planned(of, seeds=1)) == Counts(jobs=3, before=0, done=1, failed=0)
        stopper.join(PATIENCE_S)
    (tmp_path / "go").touch()
    assert compute(tmp_path, planned(of, seeds=1))[0] == Counts(jobs=3, before=1, done=2, failed=0)
    assert stand_in.calls(tmp_path).count("alpha 0") == 1


def test_a_process_that_never_starts_ends_the_engine_with_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pools, "local", lambda: Pool("support.no_such_module", ""))
    with pytest.raises(UserError, match=r"did not begin \(its process ended with exit code 1\); see what it printed"):
        compute(tmp_path, planned(stand_in.preset(tmp_path)))


def test_a_lost_cluster_ends_the_engine_with_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    def lost(address: str, gpus: float) -> Pool:
        return Pool("support.no_such_module", "")

    monkeypatch.setattr(pools, "on_ray", lost)
    with pytest.raises(UserError) as caught:
        compute(tmp_path, planned(stand_in.preset(tmp_path)), ray="192.0.2.7:6379")
    assert str(caught.value) == (
        "the Ray cluster 192.0.2.7:6379 is lost (its process ended with exit code 1); results are kept: repeat "
        "the command to continue"
    )


# --- killed ---

ENGINE = """
import sys
from pathlib import Path
from helpers import stand_in
from test_engine import Recorder, planned
from unstale_papers.engine import Engine
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.store import Store

if __name__ == "__main__":
    MEASUREMENTS[stand_in.NAME] = stand_in.MODULE
    folder = Path(sys.argv[1])
    with Store.open(folder / "store") as store:
        of = stand_in.preset(folder, beta="waits")
        Engine(store, Recorder(), processes=2).run(planned(of))
"""


def wait_for_calls(folder: Path, *wanted: str) -> None:
    until(lambda: set(wanted) <= set(stand_in.calls(folder)), f"calls {wanted}")


@contextmanager
def engine_of_its_own(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """An engine in a process group of its own that blocks in beta."""
    here = os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)])
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder)], env={**os.environ, "PYTHONPATH": here}, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("whole_group", [True, False], ids=["with its group", "alone"])
def test_a_killed_engine_loses_only_running_jobs(tmp_path: Path, whole_group: bool) -> None:
    with engine_of_its_own(tmp_path) as process:
        # Two processes: one waits in beta 0, the other has completed the rest and waits in beta 1.
        wait_for_calls(tmp_path, *ALL_CALLS[:5])
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    (tmp_path / "go").touch()
    began = stand_in.calls(tmp_path)
    wanted = planned(stand_in.preset(tmp_path, beta="waits"))
    with Store.open(tmp_path / "store") as store:
        kept = {f"{cell.removeprefix('method=')} {seed}" for cell, seed in store.records(wanted)}
    assert {"alpha 0", "gamma 0", "alpha 1"} <= kept
    assert kept.isdisjoint({"beta 0", "beta 1"})
    counts, _ = compute(tmp_path, wanted)
    assert counts == Counts(jobs=6, before=len(kept), done=6 - len(kept), failed=0)
    again = stand_in.calls(tmp_path)[len(began) :]
    assert sorted(again) == sorted(set(ALL_CALLS) - kept), "no completed job is computed again"


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(),
    reason="this system does not list the children of a process",
)
def test_worker_processes_end_with_a_killed_engine(tmp_path: Path) -> None:
    with engine_of_its_own(tmp_path) as process:
        wait_for_calls(tmp_path, "beta 0")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = [int(word) for word in children.read_text().split()]
        assert workers
        process.kill()
        process.wait(PATIENCE_S)
        until(lambda: not any(map(is_alive, workers)), "they end")


# --- time left ---


def test_the_time_left_divides_running_and_waiting_jobs_among_workers() -> None:
    assert left_s([], [], 2) == 0.0
    assert left_s([], [None, None], 2) is None
    assert left_s([(4.0, 10.0), (1.0, 3.0)], [10.0, 10.0], 2) == (6 + 2 + 10 + 10) / 2
    assert left_s([(4.0, 10.0)], [], 2) == 6.0, "one job is not divided"
    assert left_s([(30.0, 10.0)], [], 1) == 0.0
    assert left_s([(1.0, None)], [4.0, 8.0, None], 1) == 5 + 4 + 8 + 6, "an unknown duration is the mean of others"


def test_a_job_is_estimated_from_jobs_of_its_size(tmp_path: Path) -> None:
    of = stand_in.preset(tmp_path)
    alike = [replace(cell, options={}) for cell in of.cells]
    other = alike[1].settings.model_copy(
        update={"policy": alike[1].settings.policy.model_copy(update={"name": "dynsgd"})}
    )
    larger = alike[2].settings.model_copy(update={"rounds": 70})
    cells = [alike[0], replace(alike[1], settings=other), replace(alike[2], settings=larger)]
    first, by_other_policy, longer = [
        one.configuration for one in jobs(of, cells, seeds=[0], scale=Scale(), place=Place(cache="/data"))
    ]
    second = jobs(of, cells, seeds=[1], scale=Scale(), place=Place(cache="/data"))[0].configuration
    took = Durations([(first, 10.0), (second, 14.0)])
    assert took.of(first) == 12.0
    assert took.of(by_other_policy) == 12.0, "without a closer job"
    assert took.of(longer) is None
    took.add(by_other_policy, 20.0)
    assert took.of(by_other_policy) == 20.0
    assert took.of(second) == 12.0


# --- Ray ---


@pytest.mark.network
@pytest.mark.slow
def test_a_ray_cluster_runs_jobs_and_a_killed_worker_loses_only_its_job(tmp_path: Path) -> None:
    wanted = planned(stand_in.preset(tmp_path, alpha="dies once", beta="fails"), seeds=1)
    counts, seen = compute(tmp_path, wanted, ray="local")
    assert counts == Counts(jobs=3, before=0, done=2, failed=1)
    assert len(seen.lost) == 1
    assert seen.why["tiny: method=beta, seed 0"].endswith("ZeroDivisionError: as instructed\n")
    assert sorted(stand_in.calls(tmp_path)) == ["alpha 0", "alpha 0", "beta 0", "gamma 0"]


@pytest.mark.network
def test_an_unreachable_cluster_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--ray is '127.0.0.1:1', but nothing answers there"):
        compute(tmp_path, planned(stand_in.preset(tmp_path)), ray="127.0.0.1:1")


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    digests = []
    for content in (b"one", b"another"):
        file.write_bytes(content)
        digests.append(file_of(str(file)).sha256)
    assert digests == [sha256(content).hexdigest() for content in (b"one", b"another")]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_job_returns_its_memory_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [b"x" * 100_000 for _ in range(3000)]
    used = resident()
    needed = blocks[-1]  # behind all others, so that glibc alone would return no memory
    del blocks
    release_memory()
    assert used - resident() > 250_000_000
    assert len(needed) == 100_000
