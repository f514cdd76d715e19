"""The connection of a run to a Ray cluster: the driver may refuse, crash and restart."""

from collections.abc import Callable, Iterator
from errno import EAGAIN
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load, save

from support.running import until
from unstale.errors import UserError, WorkerLostError
from unstale.workers import pool, ray_executor
from unstale.workers.pool import RayStart
from unstale.workers.ray_executor import RayExecutor

VALUES = torch.arange(3.0)
FULL, EMPTY = save({"values": VALUES}), save({"values": torch.empty(0)})
GONE = "the Ray cluster breaks is gone"
PATIENCE_S = 60.0


@pytest.fixture
def to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], RayExecutor]]:
    monkeypatch.setattr(pool, "DRIVER", "workers.simulated_driver")
    monkeypatch.setattr(pool, "find_spec", lambda name: True)
    made: list[RayExecutor] = []

    def connect(address: str) -> RayExecutor:
        start = RayStart(address=address, key="compensator.ray", program="", cpus=1, gpus=0.0, advice="lower threads")
        made.append(RayExecutor(start))
        return made[-1]

    yield connect
    for one in made:
        one._pool.kill()  # some of them stay


def why_lost(there: RayExecutor, group: bytes) -> str:
    with pytest.raises(WorkerLostError) as caught:
        there.submit(group).result(PATIENCE_S)
    return str(caught.value)


def assert_comes_back(there: RayExecutor) -> None:
    there._pool.ready.result(PATIENCE_S)
    assert torch.equal(load(there.submit(FULL).result(PATIENCE_S))["values"], VALUES)


def test_each_group_has_its_own_result(to):
    there = to("anywhere")
    futures = [there.submit(save({"values": torch.full((2,), float(value))})) for value in range(3)]
    assert [load(future.result())["values"].tolist() for future in futures] == [[value] * 2 for value in range(3)]


def test_a_cancelled_group_is_forgotten(to):
    there = to("listens no more")
    assert there.submit(FULL).cancel()
    assert there._pool._open == {}


def test_a_new_connection_begins_with_a_pause(to, monkeypatch):
    there = to("breaks")
    starts: list[RayStart] = []
    start_pool = pool.on_ray
    monkeypatch.setattr(pool, "on_ray", lambda start: starts.append(start) or start_pool(start))
    assert why_lost(there, EMPTY) == GONE
    assert why_lost(there, FULL) == GONE
    assert [start.pause_s for start in starts] == [ray_executor.PAUSE_S]
    assert_comes_back(there)


def test_a_refusal_is_a_user_error(to):
    with pytest.raises(UserError, match=r"^the sentence of the driver$"):
        to("refuses")


def test_a_crash_before_ready_is_reported(to):
    with pytest.raises(UserError) as caught:
        to("crashes")
    assert str(caught.value) == (
        "compensator.ray is 'crashes', but the process that connects to it ended; see its output"
    )


def test_a_crash_loses_running_groups_and_the_driver_restarts(to):
    there = to("breaks")
    assert why_lost(there, EMPTY) == GONE
    assert why_lost(there, FULL) == GONE, "the group does not wait for the restart"
    assert_comes_back(there)


def test_an_unnoticed_crash_restarts_the_driver_at_the_next_group(to):
    there = to("anywhere")
    there._pool._process.kill()
    until(lambda: there._pool.why_ended is not None, "the end of the driver")
    assert why_lost(there, FULL) == "the Ray cluster anywhere is gone"
    assert_comes_back(there)


def test_a_failed_restart_reports_its_reason(to, tmp_path):
    there = to(f"breaks:{tmp_path / 'broken'}")
    why_lost(there, EMPTY)
    why_lost(there, FULL)
    until(lambda: there._pool.why_ended is not None, "the refusal")
    assert why_lost(there, FULL) == "the sentence of the driver"


def test_a_driver_that_does_not_end_does_not_block_a_restart(to, monkeypatch):
    monkeypatch.setattr(pool, "END_S", 10_000.0)  # the driver would not end in this time
    there = to("leaves")
    why_lost(there, EMPTY)
    assert why_lost(there, FULL) == "the Ray cluster leaves is gone"
    assert_comes_back(there)


def test_a_driver_that_does_not_read_loses_the_group(to, monkeypatch):
    monkeypatch.setattr(pool, "FRAME_S", 1)
    there = to("listens no more")
    assert why_lost(there, save({"values": torch.zeros(10**6)})) == "the Ray cluster listens no more is gone"


def test_a_driver_that_sends_an_incomplete_message_loses_the_group(to, monkeypatch):
    monkeypatch.setattr(pool, "FRAME_S", 1)
    assert why_lost(to("stammers"), EMPTY) == "the Ray cluster stammers is gone"


def test_stop_loses_groups_now_and_later(to):
    there = to("listens no more")
    future = there.submit(FULL)
    there.stop()
    with pytest.raises(WorkerLostError, match=r"^the run was stopped$"):
        future.result(PATIENCE_S)
    before = there._pool
    assert why_lost(there, FULL) == "the run was stopped"
    assert there._pool is before, "the executor does not reconnect"


def test_stop_during_a_reconnection_stops_the_new_pool(to, monkeypatch):
    there = to("breaks")
    why_lost(there, EMPTY)
    connect = pool.on_ray

    def stop_and_connect(start: RayStart) -> pool.Pool:
        there.stop()
        return connect(start)

    monkeypatch.setattr(pool, "on_ray", stop_and_connect)
    assert why_lost(there, FULL) == GONE
    assert why_lost(there, FULL) == "the run was stopped"


def no_process(*args: object, **given: object) -> None:
    raise OSError(EAGAIN, "Resource temporarily unavailable")


NOT_STARTED = (
    "compensator.ray is 'breaks', but the process that connects to it does not start (Resource temporarily "
    "unavailable), expected one more process to be possible; end others, or raise the limit"
)


def test_a_driver_that_cannot_start_is_one_error_sentence(to, monkeypatch):
    monkeypatch.setattr(pool.subprocess, "Popen", no_process)
    with pytest.raises(UserError) as caught:
        to("breaks")
    assert str(caught.value) == NOT_STARTED


def test_a_driver_that_cannot_restart_loses_the_group_and_is_retried(to, monkeypatch):
    there = to("breaks")
    why_lost(there, EMPTY)
    with monkeypatch.context() as patch:
        patch.setattr(pool.subprocess, "Popen", no_process)
        for _ in range(2):
            assert why_lost(there, FULL) == NOT_STARTED
    there.submit(FULL)
    assert_comes_back(there)


def test_the_driver_imports_no_module_from_the_run_folder(to, tmp_path, monkeypatch):
    (tmp_path / "safetensors.py").touch()
    monkeypatch.chdir(tmp_path)
    to("anywhere")


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_local_cluster_listens_only_on_this_machine(to, monkeypatch):
    monkeypatch.setattr(pool, "DRIVER", "workers.ray_address")
    with pytest.raises(UserError, match=r"^127\.0\.0\.1$"):
        to("local")
