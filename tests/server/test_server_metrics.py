"""/metrics of a run under way, every number of it counted by hand."""

import json
from contextlib import ExitStack
from math import isnan
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from prometheus_client import Metric as Family

from support.running import RunningServer, small, until
from support.scrape import Page, families, get, sample
from support.wire import RawClient, update_of
from unstale.coordinator.membership import State
from unstale.metrics import catalogue
from unstale.net import connections, zap
from unstale.server.service import Server
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, OwnEvaluation, Stop

pytestmark = pytest.mark.network

ONES = np.ones(650, dtype="<f4")
MODEL_BYTES = 4 * 650

ABOUT = (catalogue.BUILD_INFO, catalogue.RUN_INFO)
OF_OTHER_RUNS = (  # with a compensator or a tracker
    catalogue.COMPENSATED_UPDATES,
    catalogue.COMPENSATION_FALLBACKS,
    catalogue.COMPENSATION_ERROR,
    catalogue.TRACKER_FAILURES,
)
LABELS: dict[str, set[str]] = {
    "phase": {"wait", "compensate", "aggregate", "evaluate", "checkpoint"},
    "outcome": {"accepted", "duplicate", "rejected"},
    "reason": {"", *(reason.value for reason in Reason), *zap.REASONS, *connections.REASONS, "code-error"},
    "vector": {"update"},
    "direction": {"received", "sent"},
    "class": {str(label) for label in range(10)},
    "name": {"loss"},
    "split": {"clients", "training"},
    "statistic": {"mean", "std", "worst_tenth", "best_tenth"},
    "state": {*(state.name.lower() for state in State), "active", "waiting", "client", "stranger"},
}


def total(family: Family, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels among theirs."""
    return sum(s.value for s in family.samples if s.name == name and labels.items() <= s.labels.items())


def test_every_number_of_a_run_under_way() -> None:
    settings = small(
        clients=3, rounds=9, evaluate_every=1, evaluate_clients_every=1, trigger={"name": "k-async", "k": 2}
    )
    with (
        RunningServer(settings) as server,
        RawClient(server.address, 0) as a,
        RawClient(server.address, 1) as b,
        RawClient(server.address, 2) as c,
    ):
        (run_id,) = {client.join().run_id for client in (a, b, c)}
        tasks = {client.client_id: client.task()[0] for client in (a, b, c)}  # 3 models sent
        assert [tasks[client].evaluate for client in range(3)] == [None] * 3  # no client has trained yet
        a.answer(tasks[0], ONES, evaluation=OwnEvaluation(accuracy=1.0, loss=0.0, examples=4))  # unasked
        b.answer(tasks[1], ONES)  # version 1 of a and b, both fresh
        tasks[0], tasks[1] = a.task()[0], b.task()[0]  # 5 sent
        assert tasks[0].evaluate is tasks[1].evaluate is True
        c.answer(tasks[2], ONES)
        quarter = OwnEvaluation(accuracy=0.25, loss=2.0, examples=4)
        a.answer(tasks[0], ONES, evaluation=quarter)  # version 2 of c, one round late, and a, fresh
        a.task()
        tasks[2] = c.task()[0]  # 7 sent
        three_quarters = OwnEvaluation(accuracy=0.75, loss=1.0, examples=8)
        c.answer(tasks[2], ONES, evaluation=three_quarters)  # accepted, and waits
        c.answer(tasks[2], ONES)  # a copy of it
        rejected = update_of(tasks[1], evaluation=OwnEvaluation(accuracy=1.0, loss=0.0, examples=8))
        b.say(rejected, [(ONES * np.nan).tobytes()])
        assert b.hear(Ack).reason is Reason.NON_FINITE
        b.say_bytes(b"noise")
        assert b.hear(Error).reason is Reason.MALFORMED_HEADER

        found = families(server.http)
        by_name = {metric.name: found[metric.name.removesuffix("_total")] for metric in catalogue.CATALOGUE}
        for metric in catalogue.CATALOGUE:
            family = by_name[metric.name]
            assert family.documentation == metric.help
            if metric in OF_OTHER_RUNS:
                assert not family.samples, f"{metric.name} without a compensator or a tracker"
                continue
            assert family.samples, f"{metric.name} has no value"
            if metric in ABOUT:
                (about,) = family.samples
                assert (set(about.labels), about.value) == (set(metric.labels), 1)
                continue
            for one in family.samples:
                own = {name: value for name, value in one.labels.items() if name != "le"}
                assert set(own) == set(metric.labels)
                for name, value in own.items():
                    assert value in LABELS[name], f"{metric.name}: {name} is {value!r}"

        updates, name = by_name["unstale_updates_total"], "unstale_updates_total"
        assert total(updates, name, outcome="accepted", reason="") == 2 * 2 + 1  # K * version + those waiting
        assert total(updates, name, outcome="duplicate") == 1
        assert total(updates, name, outcome="rejected") == 1
        traffic, name = by_name["unstale_update_bytes_total"], "unstale_update_bytes_total"
        assert total(traffic, name, direction="received") == 7 * MODEL_BYTES
        assert total(traffic, name, direction="sent") == 7 * MODEL_BYTES
        refused = by_name["unstale_messages_refused_total"]
        assert total(refused, refused.name + "_total", reason="malformed-header") == 1

        assert total(by_name["unstale_model_version"], "unstale_model_version") == 2
        staleness, name = by_name["unstale_update_staleness_rounds"], "unstale_update_staleness_rounds"
        assert total(staleness, name + "_count") == 4
        assert total(staleness, name + "_sum") == 0 + 0 + 1 + 0
        weight, name = by_name["unstale_aggregation_weight"], "unstale_aggregation_weight"
        assert total(weight, name + "_count") == 4
        assert 0 < total(weight, name + "_sum") <= 4
        duration, name = by_name["unstale_round_duration_seconds"], "unstale_round_duration_seconds"
        assert total(duration, name + "_count") == 2
        phases, phase_name = (by_name["unstale_round_phase_duration_seconds"], "unstale_round_phase_duration_seconds")
        assert total(phases, phase_name + "_count", phase="aggregate") == 2
        assert total(phases, phase_name + "_count", phase="wait") == 2
        waited_and_aggregated = sum(
            total(phases, phase_name + "_sum", phase=phase) for phase in ("wait", "compensate", "aggregate")
        )
        assert total(duration, name + "_sum") == pytest.approx(waited_and_aggregated)
        assert total(duration, name + "_sum") > 0

        assert 0 <= total(by_name["unstale_test_accuracy_ratio"], "unstale_test_accuracy_ratio") <= 1
        assert total(by_name["unstale_test_loss"], "unstale_test_loss") > 0
        own, name = by_name["unstale_client_test_accuracy_ratio"], "unstale_client_test_accuracy_ratio"
        assert total(own, name, statistic="mean") == 0.5
        assert total(own, name, statistic="std") == pytest.approx(0.125**0.5)
        assert total(own, name, statistic="worst_tenth") == 0.25
        assert total(own, name, statistic="best_tenth") == 0.75
        by_class = by_name["unstale_test_class_accuracy_ratio"].samples
        assert {one.labels["class"] for one in by_class} == LABELS["class"]
        assert all(0 <= one.value <= 1 for one in by_class)
        assert total(by_name["unstale_device_memory_bytes"], "unstale_device_memory_bytes") == 0
        assert total(by_name["unstale_run_disk_bytes"], "unstale_run_disk_bytes") == 0
        assert isnan(total(by_name["unstale_run_disk_free_bytes"], "unstale_run_disk_free_bytes"))
        assert total(by_name["unstale_run_rounds"], "unstale_run_rounds") == 9
        assert total(by_name["unstale_updates_pending"], "unstale_updates_pending") == 1
        overflowed = by_name["unstale_rounds_overflowed_total"]
        assert total(overflowed, "unstale_rounds_overflowed_total") == 0
        (about,) = by_name["unstale_run_info"].samples
        assert about.labels == {
            "run": run_id, "policy": "fedbuff", "compensator": "none", "trigger": "k-async",
            "selector": "all", "model": "logreg", "data": "digits", "training": "gradient", "device": "cpu",
        }  # fmt: skip

        clients = {one.labels["state"]: one.value for one in by_name["unstale_clients"].samples}
        assert clients == {
            "absent": 0, "waiting": 1, "working": 1, "contributed": 1, "unavailable": 0, "lost": 0, "left": 0,
        }  # fmt: skip


def test_what_a_run_takes_on_disk_is_shown_with_what_has_come_of_transfers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = small(clients=1, rounds=100, run={"directory": str(run)})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        client.join()
        task, _ = client.task()
        before = sample(server.http, "unstale_run_disk_bytes")
        client.answer(task, ONES)  # which lies in the run's directory now
        assert sample(server.http, "unstale_run_disk_bytes") >= before + MODEL_BYTES
        assert before >= (run / "config.yaml").stat().st_size
        assert sample(server.http, "unstale_run_disk_free_bytes") > 0
        assert sample(server.http, "unstale_journal_commit_seconds_count") >= 3  # a client, a task, an update
        client.task()  # a round was made
        before = sample(server.http, "unstale_run_disk_bytes")
        (run / "transfers" / "0-9.part").write_bytes(bytes(10**7))
        assert 10**7 <= sample(server.http, "unstale_run_disk_bytes") - before < 2 * 10**7
        (run / "transfers" / "0-9.part").unlink()


def test_a_resumed_server_shows_the_state_of_the_run_and_no_number_before_the_first_evaluation(tmp_path: Path) -> None:
    settings = small(clients=1, rounds=9, evaluate_every=1, run={"directory": str(tmp_path / "run")})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        assert isnan(sample(server.http, "unstale_test_accuracy_ratio"))
        client.join()
        client.answer(client.task()[0], ONES)
        client.task()
        until(lambda: not isnan(sample(server.http, "unstale_test_accuracy_ratio")))
        accuracy = sample(server.http, "unstale_test_accuracy_ratio")
    with RunningServer(settings) as server:
        assert sample(server.http, "unstale_model_version") == 1
        assert sample(server.http, "unstale_test_accuracy_ratio") == accuracy


def test_health_and_readiness_from_before_the_run_to_after_its_end() -> None:
    settings = small(clients=1, rounds=1, server={"linger_s": 60.0})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        client.say(Heartbeat(number=0, version=0))
        assert client.hear(Error).reason is Reason.HELLO_FIRST  # so it turns, and takes clients from now on
        assert get(f"{server.http}/readyz") == Page(200, "ok\n")
        assert get(f"{server.http}/healthz") == Page(200, "ok\n")
        assert get(f"{server.http}/nothing").status == 404
        client.join()
        task, _ = client.task()
        client.answer(task, ONES)
        assert client.hear(Stop).reason == "finished"
        assert get(f"{server.http}/readyz").status == 503  # a newcomer would come too late
        assert get(f"{server.http}/healthz").status == 200  # but it does its work: saying goodbye
        assert sample(server.http, "unstale_model_version") == 1
        client.say(Bye())
        server.end()
        with pytest.raises(URLError):
            get(f"{server.http}/readyz")


def test_a_server_that_does_not_run_yet_is_neither_ready_nor_healthy() -> None:
    server = Server(small(), on_progress=lambda _: None)
    url = f"http://{server.http_address}"
    assert get(f"{url}/readyz").status == 503
    assert get(f"{url}/healthz").status == 503
    assert sample(url, "unstale_clients", state="absent") == 2
    server.stop()
    assert server.run().reason == "shutdown"


def test_tasks_that_clients_give_back_are_counted_by_reason_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer(small(clients=4)) as server, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, client_id)) for client_id in range(4)]
        for client in clients:
            client.join()
        tasks = [client.task()[0] for client in clients]
        for number, (client, task) in enumerate(zip(clients, tasks, strict=True)):
            reason = Reason.NON_FINITE if number else Reason.UNAVAILABLE
            is_code_error = True if number >= 2 else None
            error = Error(reason=reason, message=f"why {number}", task_id=task.task_id, code_error=is_code_error)
            client.say(error)
            client.say(error)  # a copy of it
            client.hears_nothing_before(0)
        for reason, count in (("unavailable", 1), ("non-finite", 1), ("code-error", 2)):
            assert sample(server.http, "unstale_tasks_given_back_total", reason=reason) == count
        rejections = json.loads(get(f"{server.http}/status.json").text)["rejections"]
        assert rejections["tasks"] == {"non-finite": 1, "code-error": 2}
    for line in ("client 1: 'why 1' (non-finite)", "client 2: 'why 2' (code-error)", "client 3: 'why 3' (code-error)"):
        assert line in caplog.text
