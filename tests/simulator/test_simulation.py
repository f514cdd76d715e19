"""The run in virtual time: order, staleness, repetition, and its end."""

import os
import subprocess
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typing_extensions import override

from support.running import small
from support.virtual import OneNumber, Trace, drawn, one_number, still, update_of
from unstale.config.metrics import Target
from unstale.coordinator import actions, events
from unstale.errors import UserError
from unstale.metrics.progress import Outcome, Progress
from unstale.settings.learning import TriggerSettings
from unstale.simulator.assemble import simulation
from unstale.simulator.backends.backend import Computed, Job
from unstale.toxics.delay import Constant
from unstale.training.local import LocalUpdate
from unstale.training.workload import Declined, NotTrained, TrainingDiverged, TrainingFailed


def outcome_of(**changes: Any) -> Outcome:
    run = simulation(small(clients=4, trigger={"name": "k-async", "k": 2}, **changes), on_progress=lambda _: None)
    return run.run()


def test_a_run_depends_only_on_its_seed() -> None:
    first = replace(outcome_of(seed=1), metrics={})
    assert replace(outcome_of(seed=1), metrics={}) == first
    other = outcome_of(seed=2)
    assert other.model_digest != first.model_digest
    assert other.seconds != first.seconds


@pytest.mark.parametrize(("clients", "k"), [(20, 5), (12, 3), (9, 1), (6, 6)])
def test_the_mean_staleness_counted_from_1_is_the_clients_over_k(clients: int, k: int) -> None:
    # A round takes K of N clients, so each waits N / K rounds from model to aggregation.
    run = one_number(
        still, drawn(clients, seed=3), clients=clients, rounds=4000 // k, trigger=TriggerSettings(name="k-async", k=k)
    )
    assert run.run().staleness_mean + 1 == pytest.approx(clients / k, rel=0.05)


def test_with_fixed_latency_a_synchronous_round_takes_one_task_time_without_staleness() -> None:
    fixed = drawn(5, Constant(value_s=2.0), jitter=(1, 1.001))
    run = one_number(still, fixed, clients=5, rounds=10, trigger=TriggerSettings(name="sync"))
    outcome = run.run()
    assert outcome.staleness_mean == 0
    assert 10 * 2.0 <= outcome.seconds < 10 * 2.002
    assert outcome.updates == {"accepted": 50, "duplicate": 0, "rejected": 0}


def test_simultaneous_updates_arrive_by_client_id() -> None:
    trace = Trace()
    run = one_number(
        still,
        lambda client_id, number: 1.0,
        clients=5,
        rounds=4,
        trigger=TriggerSettings(name="k-async", k=5),
        observe=trace,
    )
    run.run()
    assert trace.arrivals == [(float(second), client) for second in (1, 2, 3, 4) for client in range(5)]


def test_an_update_at_the_instant_of_the_deadline_counts() -> None:
    trace = Trace()
    run = one_number(
        still,
        lambda client_id, number: 2.0 + client_id,  # client 0 arrives at the deadline, client 1 after it
        clients=2,
        rounds=1,
        trigger=TriggerSettings(name="deadline", wait_s=2.0),
        observe=trace,
    )
    run.run()
    (made,) = [action for _, acts in trace.told for action in acts if isinstance(action, actions.ApplyRound)]
    assert [contribution.client_id for contribution in made.contributions] == [0]


def test_k_sync_drops_only_the_work_of_slow_clients() -> None:
    # k = 1 of 2: client 0 takes 2 s per task and gets a new one after each of client 1's, which take 1 s.
    computed: list[int] = []

    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        computed.append(client_id)
        return update_of(-1.0)

    run = one_number(train, lambda c, n: 2.0 - c, clients=2, rounds=4, trigger=TriggerSettings(name="k-sync", k=1))
    outcome = run.run()
    assert computed == [1, 1, 1, 1]
    assert (outcome.seconds, outcome.staleness_mean) == (4.0, 0)
    assert outcome.updates == {"accepted": 4, "duplicate": 0, "rejected": 0}


def test_an_update_of_a_cancelled_task_is_rejected_without_cost() -> None:
    # k-sync with a selector that draws 2 of 6: a slow client that is not drawn again still sends its update.
    settings = small(clients=6, rounds=30, trigger={"name": "k-sync", "k": 1}, selector={"name": "random", "size": 2})
    trace = Trace()
    outcome = simulation(settings, on_progress=lambda _: None, observe=trace).run()
    reasons = {action.reason for _, acts in trace.told for action in acts if isinstance(action, actions.Acknowledge)}
    assert reasons == {None, actions.Reason.EXPIRED_TASK}
    assert outcome.updates["accepted"] == 30
    assert outcome.updates["rejected"] > 0


def test_a_task_is_computed_from_its_assigned_version() -> None:
    # async, gradient -1, rate 1: version v is the number v. Client 0 takes 1 s per task, client 1 takes 2.5 s.
    bases: list[tuple[int, float]] = []

    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        bases.append((client_id, float(base_d[0])))
        return update_of(-1.0)

    trace = Trace()
    run = one_number(
        train,
        lambda client_id, number: 1.0 if client_id == 0 else 2.5,
        clients=2,
        rounds=4,
        trigger=TriggerSettings(name="async"),
        observe=trace,
    )
    outcome = run.run()
    assert [(round(at_s, 3), client) for at_s, client in trace.arrivals] == [(1, 0), (2, 0), (2.5, 1), (3, 0)]
    # FedBuff weights an update with staleness s by 1 / sqrt(1 + s), and client 1's has 2: 1 + 1 + 1/sqrt(3).
    assert bases == [(0, 0.0), (0, 1.0), (1, 0.0), (0, 2.0)]
    assert outcome.staleness_mean == (0 + 0 + 2 + 1) / 4


def test_progress_and_outcome_are_in_virtual_time() -> None:
    reports: list[Progress] = []
    run = one_number(
        still,
        lambda client_id, number: 1000.0,
        clients=2,
        rounds=3,
        trigger=TriggerSettings(name="sync"),
        on_progress=reports.append,
    )
    assert run.run().seconds == 3000.0
    assert [(now.version, now.elapsed_s) for now in reports] == [(0, 0.0), (3, 3000.0)]
    assert reports[1].updates_per_s == 6 / 3000


def test_a_non_finite_update_is_rejected_and_other_clients_continue() -> None:
    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        return update_of(nan if client_id == 0 else -1.0)

    run = one_number(train, lambda c, n: 1.0 + c, clients=2, rounds=3, trigger=TriggerSettings(name="async"))
    outcome = run.run()
    assert (outcome.reason, outcome.versions) == ("finished", 3)
    assert outcome.updates["accepted"] == 3
    assert outcome.updates["rejected"] >= 1


@pytest.mark.parametrize("refused", [0.0, 1e20])
def test_a_screened_update_is_rejected_and_other_clients_continue(refused: float) -> None:
    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        return update_of(refused, kind="delta") if client_id == 0 else update_of(-1.0)

    trace = Trace()
    run = one_number(
        train, lambda c, n: 1.0 + c, clients=2, rounds=3, trigger=TriggerSettings(name="async"), observe=trace
    )
    assert run.run().updates["accepted"] == 3
    reasons = {action.reason for _, acts in trace.told for action in acts if isinstance(action, actions.Acknowledge)}
    assert reasons == {None, "zero-update" if refused == 0 else "non-finite"}


def test_a_zero_gradient_is_aggregated() -> None:
    # sync, rate 1: each round moves by the average of 0 and -1, so two rounds end at 1; were the zeros refused, at 2.
    run = one_number(
        lambda client_id, number, base_d, rate: update_of(0.0 if client_id == 0 else -1.0),
        lambda client_id, number: 1.0,
        clients=2,
        rounds=2,
        trigger=TriggerSettings(name="sync"),
    )
    outcome = run.run()
    assert outcome.updates == {"accepted": 4, "duplicate": 0, "rejected": 0}
    assert run.sent.model_d.tolist() == [1.0]


def test_a_client_stores_its_state_only_when_its_update_is_accepted() -> None:
    # Client 0's first task diverges and its second is refused; client 1's updates are all fine.
    bad = {(0, 0): update_of(1.0, loss=nan), (0, 1): update_of(0.0, kind="delta")}
    trainer = OneNumber(lambda client_id, number, base_d, rate: bad.get((client_id, number), update_of(-1.0)))
    run = one_number(trainer, lambda c, n: 1.0, clients=2, rounds=6, trigger=TriggerSettings(name="async"))
    run.run()
    of_0 = [(number, accepted) for client_id, number, accepted in trainer.settled if client_id == 0]
    of_1 = [(number, accepted) for client_id, number, accepted in trainer.settled if client_id == 1]
    assert of_0[:2] == [(0, False), (1, False)]
    assert all(accepted for _, accepted in [*of_0[2:], *of_1])
    assert [number for number, _ in of_0] == list(range(len(of_0)))
    assert [number for number, _ in of_1] == list(range(len(of_1)))
    assert sum(accepted for _, _, accepted in trainer.settled) == 6


def test_a_late_update_is_dropped_by_its_client() -> None:
    trainer = OneNumber(lambda client_id, number, base_d, rate: update_of(-1.0))
    run = one_number(
        trainer,
        lambda client_id, number: 1.0 if client_id else 1.5,
        clients=2,
        rounds=2,
        trigger=TriggerSettings(name="k-sync", k=1),
    )
    run.run()
    assert all(client_id == 1 for client_id, _, accepted in trainer.settled if accepted)


def test_an_own_evaluation_is_requested_once_per_multiple_of_the_interval() -> None:
    # sync, gradient -1, rate 1: version v is the number v, and every client has a task on each of 0 to 5.
    trainer = OneNumber(lambda client_id, number, base_d, rate: update_of(-1.0))
    run = one_number(
        trainer,
        lambda client_id, number: 1.0,
        clients=2,
        rounds=6,
        trigger=TriggerSettings(name="sync"),
        evaluate_clients_every=2,
    )
    outcome = run.run()
    assert trainer.asked == [(client, version) for version in (2.0, 4.0) for client in (0, 1)]
    assert outcome.fairness is not None
    assert (outcome.fairness.clients, outcome.fairness.mean) == (2, pytest.approx(0.05))


def test_the_evaluation_of_a_client_whose_update_is_rejected_does_not_count() -> None:
    trainer = OneNumber(
        lambda client_id, number, base_d, rate: update_of(0.0 if client_id == 0 else -1.0, kind="delta")
    )
    run = one_number(
        trainer,
        lambda client_id, number: 1.0,
        clients=2,
        rounds=3,
        trigger=TriggerSettings(name="sync"),
        evaluate_clients_every=1,
    )
    outcome = run.run()
    assert outcome.fairness is not None
    assert (outcome.fairness.clients, outcome.fairness.mean) == (1, pytest.approx(0.1))


def test_own_evaluations_are_requested_only_when_enabled() -> None:
    trainer = OneNumber(still)
    run = one_number(trainer, lambda c, n: 1.0, clients=2, rounds=2, trigger=TriggerSettings(name="sync"))
    assert run.run().fairness is None
    assert trainer.asked == []


def test_a_task_that_diverges_occasionally_is_assigned_again() -> None:
    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        return update_of(-1.0, loss=inf if number % 2 == 0 else 1.0)

    run = one_number(train, lambda c, n: 1.0, clients=1, rounds=5, trigger=TriggerSettings(name="async"))
    outcome = run.run()
    assert (outcome.reason, outcome.versions, outcome.updates["accepted"]) == ("finished", 5, 5)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (Declined("the battery is low"), events.TaskDeclined),
        (TrainingFailed("no rows"), events.TaskRaised),
        (TrainingDiverged("the loss is nan"), events.TaskFailed),
    ],
)
def test_a_task_without_an_update_goes_back_and_leaves_no_state(error: NotTrained, event: type) -> None:
    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate | NotTrained:
        return error if (client_id, number) == (1, 0) else update_of(-1.0)

    trace, trainer = Trace(), OneNumber(train)
    run = one_number(
        trainer, lambda c, n: 1.0 + c, clients=2, rounds=5, trigger=TriggerSettings(name="async"), observe=trace
    )
    outcome = run.run()
    assert (outcome.reason, outcome.updates["accepted"]) == ("finished", 5)
    (given_back,) = trace.of(events.TaskDeclined, events.TaskRaised, events.TaskFailed)
    assert type(given_back) is event
    assert (given_back.client_id, given_back.at_s) == (1, 2.0)
    assert next(settled for settled in trainer.settled if settled[0] == 1) == (1, 0, False)


@pytest.mark.parametrize("trigger", ["sync", "k-async", "async", "buffered"])
@pytest.mark.parametrize("diverged", [update_of(1.0, loss=inf), update_of(1.0, loss=nan), update_of(nan)])
def test_a_run_in_which_every_task_diverges_ends_with_an_error(trigger: str, diverged: LocalUpdate) -> None:
    run = one_number(
        lambda client_id, number, base_d, rate: diverged,
        drawn(3),
        clients=3,
        rounds=1000,
        trigger=TriggerSettings(name=trigger, k=2 if trigger in ("k-async", "buffered") else None),
    )
    with pytest.raises(UserError, match=r"^training diverges: .* at version \d+; lower training\.learning_rate"):
        run.run()


@pytest.mark.parametrize("trigger", ["sync", "k-async", "async", "buffered"])
@pytest.mark.parametrize("first", [0, 5], ids=["from the start", "after five tasks"])
def test_a_run_in_which_the_code_of_every_client_raises_ends_with_the_last_error(trigger: str, first: int) -> None:
    run = one_number(
        lambda client_id, number, base_d, rate: update_of(-1.0) if number < first else TrainingFailed("no rows"),
        drawn(3),
        clients=3,
        rounds=1000,
        trigger=TriggerSettings(name=trigger, k=2 if trigger in ("k-async", "buffered") else None),
    )
    message = r"^every task fails: the last \d+ tasks .*; the last one: client [012]: 'no rows'; mend its cause, "
    with pytest.raises(UserError, match=message):
        run.run()
    assert (run.executor.recorder.coordinator.accepted == 0) is (first == 0)


@pytest.mark.parametrize("trigger", ["sync", "k-async", "async", "buffered"])
def test_one_client_whose_code_raises_does_not_end_a_run(trigger: str) -> None:
    run = one_number(
        lambda client_id, number, base_d, rate: TrainingFailed("no rows") if client_id == 1 else update_of(-1.0),
        lambda client_id, number: 1.0 + 9 * (client_id != 1),  # the others take ten times as long
        clients=3,
        rounds=30,
        trigger=TriggerSettings(name=trigger, k=2 if trigger in ("k-async", "buffered") else None),
    )
    outcome = run.run()
    assert (outcome.reason, outcome.versions, outcome.updates["rejected"]) == ("finished", 30, 0)


def test_a_far_too_large_learning_rate_ends_with_an_error() -> None:
    settings = small(model={"name": "digits_cnn"}, training={"learning_rate": 1e6, "steps": 20, "batch_size": 8})
    with pytest.raises(UserError, match=r"lower training\.learning_rate"):
        simulation(settings, on_progress=lambda _: None).run()


@pytest.mark.slow
def test_the_whole_trace_is_the_same_under_every_hash_seed() -> None:
    # Two runs in one process would not reveal a dependence on the order of a set.
    program = Path(__file__).with_name("trace_of_a_run.py")
    running = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(program.parents[1])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "4242")
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(set(outputs[0].split())) == 4  # four runs, four traces


def test_a_run_ends_with_the_first_evaluation_that_reaches_its_target() -> None:
    def progress_of(**run: Any) -> tuple[list[Progress], Outcome]:
        progress: list[Progress] = []
        settings = small(clients=4, rounds=12, evaluate_every=2, run=run, training={"learning_rate": 0.05})
        return progress, simulation(settings, on_progress=progress.append).run()

    plain, finished = progress_of()
    losses = [now.metrics["loss"] for now in plain]
    value = (losses[0] + min(losses)) / 2
    first = next(index for index, loss in enumerate(losses) if loss < value)
    assert 0 < first < len(losses) - 1
    progress, outcome = progress_of(until=f"loss < {value}")
    assert [now.metrics["loss"] for now in progress] == losses[: first + 1]
    assert list(progress[0].metrics) == ["loss", "accuracy"]  # the metric of the target is the main one
    assert (finished.reason, outcome.reason) == ("finished", "reached")
    assert finished.missed is outcome.missed is None
    assert outcome.versions == progress[-1].version == 2 * first
    _, outcome = progress_of(until="loss < 0.001")
    assert outcome.missed == f"run.until, loss < 0.001, was not reached in 12 rounds; the last loss is {losses[-1]:.4f}"


def test_without_the_metric_on_the_test_set_the_clients_mean_reaches_the_target() -> None:
    class Trained(OneNumber):
        """Reports the number of its earlier tasks as a metric."""

        @override
        def _one(self, job: Job) -> Computed:
            computed = super()._one(job)
            return replace(computed, local=replace(computed.local, metrics={"tasks": float(job.number)}))

    def outcome_of(name: str, value: float) -> Outcome:
        return one_number(
            Trained(still),
            drawn(3, seed=3),
            clients=3,
            rounds=50,
            trigger=TriggerSettings(name="sync"),
            target=Target(name, ">", value),
        ).run()

    outcome = outcome_of("tasks", 3.5)
    # In round r each of the three clients has had r - 1 earlier tasks: the mean is over 3.5 in round 5.
    assert (outcome.reason, outcome.versions, outcome.missed) == ("reached", 5, None)
    assert outcome.training_metrics["tasks"].mean == 4.0
    missed = "run.until, tasks > 60, was not reached in 50 rounds; the last tasks is 49.0000"
    assert outcome_of("tasks", 60).missed == missed
    assert outcome_of("mae", 60).missed == "run.until, mae > 60, was not reached in 50 rounds; mae was not reported"
