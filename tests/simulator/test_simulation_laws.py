"""Laws of every run in virtual time, for any draws. See docs/methods/rounds.md#loops."""

from collections import Counter
from math import inf
from typing import Any

import pytest

from support import coordinator_invariants as invariants
from support.running import small
from support.virtual import Latency, OneNumber, Trace, always, drawn, one_number, still
from unstale.coordinator import actions, events
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale.simulator.assemble import simulation
from unstale.toxics.delay import Constant
from unstale.toxics.link import Applied
from unstale.toxics.registry import create


def applied(name: str = "", clients: frozenset[int] | None = None, **settings: Any) -> Applied:
    return Applied(create({"name": name or settings["type"], **settings}, "test"), clients)


FAULTS = (
    applied(type="drop", toxicity=0.15),
    applied(type="duplicate", toxicity=0.1, after=0.3),
    applied(type="reorder", toxicity=0.1, delay={"distribution": "exponential", "mean_s": 0.5}),
    applied(type="corrupt", toxicity=0.05),
    applied(type="disconnect", toxicity=0.02, down_s=1.0),
    applied(type="latency", delay={"distribution": "lognormal", "median_s": 0.1, "sigma": 1.0}),
    applied("away", frozenset({1, 2}), type="dropout", on_s=20.0, off_s=15.0),
)


def latencies(clients: int) -> dict[str, Latency]:
    """The latencies of docs/methods/heterogeneity.md#durations-of-tasks."""
    return {
        "exponential": drawn(clients, seed=3),
        "lognormal": drawn(clients, Constant(value_s=1.0), seed=3, spread=0.5, jitter=(0.9, 1.1)),
        "fixed": drawn(clients, Constant(value_s=1.0), seed=3, jitter=(1, 1.001)),
    }


@pytest.mark.parametrize("law", ["exponential", "lognormal", "fixed"])
@pytest.mark.parametrize(("clients", "k"), [(100, 10), (9, 1), (6, 6)])
def test_the_mean_staleness_counted_from_1_is_the_clients_over_k(clients: int, k: int, law: str) -> None:
    # 4.1, Little's law: N updates are outstanding and K leave each round, for any latency.
    level, trace = clients / k, Trace()
    burn_in = int(20 * level)
    one_number(
        still,
        latencies(clients)[law],
        clients=clients,
        rounds=burn_in + 2000 // k,
        trigger=TriggerSettings(name="k-async", k=k),
        observe=trace,
    ).run()
    settled = trace.staleness[burn_in * k :]
    assert sum(settled) / len(settled) + 1 == pytest.approx(level, rel=0.03)


def test_a_run_from_a_cold_start_sees_a_little_less_staleness() -> None:
    # 4.1: over 20 N/K rounds from the start, about 5 % less than N/K.
    trace = Trace()
    one_number(
        still, drawn(100, seed=3), clients=100, rounds=200, trigger=TriggerSettings(name="k-async", k=10), observe=trace
    ).run()
    assert sum(trace.staleness) / len(trace.staleness) + 1 == pytest.approx(0.95 * 10, rel=0.02)


def test_with_exponential_latencies_the_staleness_is_geometric() -> None:
    # 4.2: P(tau1 = j) = q (1 - q)^(j - 1), q = K / N = 0.1; standard deviation sqrt(1 - q) / q = 9.5.
    trace = Trace()
    one_number(
        still,
        drawn(100, seed=5),
        clients=100,
        rounds=1200,
        trigger=TriggerSettings(name="k-async", k=10),
        observe=trace,
    ).run()
    settled = trace.staleness[2000:]
    share = Counter(settled)[0] / len(settled)
    mean = sum(settled) / len(settled)
    deviation = (sum((one - mean) ** 2 for one in settled) / len(settled)) ** 0.5
    assert share == pytest.approx(0.1, abs=0.01)
    assert deviation == pytest.approx(9.49, rel=0.06)


def test_with_fixed_latencies_the_staleness_is_nearly_constant() -> None:
    # 4.2, `fixed`: all clients are equally fast, so each waits its N / K rounds.
    trace = Trace()
    one_number(
        still,
        latencies(100)["fixed"],
        clients=100,
        rounds=500,
        trigger=TriggerSettings(name="k-async", k=10),
        observe=trace,
    ).run()
    settled = Counter(trace.staleness[1000:])
    assert settled[9] > 0.75 * settled.total()
    assert settled[8] + settled[9] + settled[10] > 0.99 * settled.total()


def test_a_slow_client_contributes_half_as_often() -> None:
    # 4.5, without waiting for a round: clients 0 to 4 are slow.
    trace = Trace()
    one_number(
        still,
        drawn(10, seed=1),
        clients=10,
        rounds=2000,
        trigger=TriggerSettings(name="async"),
        toxics=[applied(clients=frozenset(range(5)), type="slow", factor=2.0)],
        observe=trace,
    ).run()
    count = Counter(client for _, client in trace.arrivals)
    slow, fast = (sum(count[client] for client in group) for group in (range(5), range(5, 10)))
    assert slow / fast == pytest.approx(0.5, rel=0.08)


def test_a_client_is_available_in_a_share_p_of_the_rounds() -> None:
    # 4.4: independent draws; of 400 rounds the share is off by 2.5 % one time in three where p is a half.
    toxic = applied(type="dropout", p_min=0.1)
    trace = Trace()
    one_number(
        still,
        always(1.0),
        clients=12,
        rounds=400,
        seed=4,
        trigger=TriggerSettings(name="sync"),
        toxics=[toxic],
        observe=trace,
    ).run()
    there = Counter(client for _, client in trace.arrivals)
    for client in range(12):
        p = toxic.toxic.probability(client, 4)  # type: ignore[attr-defined]
        assert 0.1 <= p <= 1
        assert there[client] / 400 == pytest.approx(p, abs=0.08)
    assert set(trace.staleness) == {0}  # no update has an old base model


@pytest.mark.parametrize("trigger", ["sync", "k-async", "buffered"])
def test_rounds_without_available_clients_pass(trigger: str) -> None:
    k = None if trigger == "sync" else 1
    trace = Trace()
    outcome = one_number(
        still,
        always(1.0),
        clients=2,
        rounds=60,
        trigger=TriggerSettings(name=trigger, k=k),
        toxics=[applied(type="dropout", p=0.3)],
        observe=trace,
    ).run()
    made = trace.done(actions.ApplyRound)
    assert (outcome.reason, len(made)) == ("finished", 60)
    assert any(not action.contributions for action in made)
    assert any(action.contributions for action in made)


def test_a_stale_client_delivers_its_update_of_t_rounds_ago() -> None:
    # 4.3 with all clients in each epoch: T = 3 for client 0, which counts as unstale before epoch 3.
    bases: dict[int, list[float]] = {0: [], 1: []}
    trace = Trace()

    def train(client_id: int, number: int, base_d: Any, rate: float) -> Any:
        bases[client_id].append(float(base_d[0]))
        return still(client_id, number, base_d, rate)

    one_number(
        train,
        always(1.0),
        clients=2,
        rounds=8,
        trigger=TriggerSettings(name="sync"),
        stale_rounds={0: 3},
        observe=trace,
    ).run()
    late = [
        {contribution.client_id: contribution.staleness for contribution in action.contributions}
        for action in trace.done(actions.ApplyRound)
    ]
    assert [of_round[0] for of_round in late] == [0, 0, 0, 3, 3, 3, 3, 3]
    assert [of_round[1] for of_round in late] == [0] * 8


def test_epochs_in_round_robin_repeat() -> None:
    # 4.3: m = 2 of N = 6, so epoch t has clients 2t and 2t + 1 modulo 6; client 0, with T = 4, is late from epoch 6 on.
    trace = Trace()
    one_number(
        still,
        always(1.0),
        clients=6,
        rounds=9,
        trigger=TriggerSettings(name="sync"),
        selector=SelectorSettings(name="round-robin", size=2),
        stale_rounds={0: 4},
        observe=trace,
    ).run()
    made = trace.done(actions.ApplyRound)
    assert [[one.client_id for one in action.contributions] for action in made] == [[0, 1], [2, 3], [4, 5]] * 3
    late = [one.staleness for action in made for one in action.contributions if one.client_id == 0]
    assert late == [0, 0, 4]


@pytest.mark.parametrize(
    ("trigger", "k", "selector"),
    [
        ("sync", None, None),
        ("k-sync", 3, None),
        ("k-async", 3, None),
        ("k-async", 2, 4),
        ("async", None, None),
        ("buffered", 3, None),
        ("deadline", None, None),
    ],
)
def test_every_update_counts_once_under_any_fault(trigger: str, k: int | None, selector: int | None) -> None:
    applied_tasks: list[int] = []
    accepted: list[int] = []

    def observe(event: events.Event, what: Any) -> None:
        invariants.check(run._coordinator)
        for action in what:
            if isinstance(action, actions.ApplyRound):
                applied_tasks.extend(one.task_id for one in action.contributions)
            elif isinstance(action, actions.Acknowledge) and action.outcome is actions.Outcome.ACCEPTED:
                accepted.append(action.task_id)

    run = one_number(
        still,
        drawn(8, seed=2),
        clients=8,
        rounds=60,
        seed=9,
        trigger=TriggerSettings(name=trigger, k=k, wait_s=2.0 if trigger == "deadline" else None),
        selector=None if selector is None else SelectorSettings(name="random", size=selector),
        toxics=FAULTS,
        lease_s=10.0,
        observe=observe,
    )
    outcome = run.run()
    coordinator = run._coordinator
    assert (outcome.reason, outcome.versions) == ("finished", 60)
    assert coordinator.accepted == coordinator.aggregated + len(coordinator.pending)
    assert outcome.updates["accepted"] == len(accepted) == len(set(accepted))
    assert len(applied_tasks) == len(set(applied_tasks)) == coordinator.aggregated
    assert run.traffic.lost > 0
    assert run.traffic.cuts > 0


@pytest.mark.parametrize(
    ("trigger", "k"),
    [("sync", None), ("k-sync", 3), ("k-async", 3), ("async", None), ("buffered", 2), ("deadline", None)],
)
def test_updates_computed_ahead_arrive_unchanged(trigger: str, k: int | None) -> None:
    def played(at_a_time: int) -> tuple[Any, OneNumber]:
        backend = OneNumber(at_a_time=at_a_time)
        run = one_number(
            backend,
            drawn(10, seed=6),
            clients=10,
            rounds=80,
            trigger=TriggerSettings(name=trigger, k=k, wait_s=0.7 if trigger == "deadline" else None),
        )
        return run.run(), backend

    (alone, one_by_one), (ahead, together) = played(1), played(4)
    assert ahead == alone
    assert together.settled == one_by_one.settled
    assert set(one_by_one.batches) == {1}
    assert max(together.batches) > 1
    assert sum(together.batches) == sum(one_by_one.batches) == alone.updates["accepted"]


def test_with_faults_few_computed_updates_are_lost() -> None:
    backend = OneNumber(at_a_time=4)
    run = one_number(
        backend,
        drawn(8, seed=2),
        clients=8,
        rounds=100,
        seed=9,
        trigger=TriggerSettings(name="k-async", k=2),
        toxics=FAULTS,
        lease_s=10.0,
    )
    outcome = run.run()
    # Some are computed ahead for an update that the network then loses permanently.
    assert sum(backend.batches) <= 1.1 * (outcome.updates["accepted"] + outcome.updates["rejected"])


@pytest.mark.parametrize("scenario", ["flaky", "availability-05", "lte"])
def test_a_scenario_repeats_to_the_bit_with_its_seed(scenario: str) -> None:
    def digest(seed: int) -> tuple[str, float]:
        settings = small(
            clients=6, rounds=15, seed=seed, trigger={"name": "k-async", "k": 2}, scenario={"name": scenario}
        )
        outcome = simulation(settings, on_progress=lambda _: None).run()
        return outcome.model_digest, outcome.seconds

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_leases_are_tracked_only_where_a_client_may_fall_silent() -> None:
    for scenario, watched in (("lte", False), ("availability-05", False), ("flaky", True), (None, False)):
        run = simulation(small(clients=3, scenario={"name": scenario}), on_progress=lambda _: None)
        assert (run._coordinator.settings.lease_s < inf) == watched


def test_the_times_of_a_scenario_are_scaled() -> None:
    seconds = [
        simulation(small(scenario={"time_scale": scale}), on_progress=lambda _: None).run().seconds
        for scale in (1.0, 10.0)
    ]
    assert seconds[1] == pytest.approx(10 * seconds[0])
