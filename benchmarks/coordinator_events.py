"""Events a second through the coordinator, one thread, 10,000 clients, half updates and half heartbeats.

The time includes creating the events and the resulting actions. The bare loop creates the same events and counts them
in a dictionary by type. The two alternate, and the fastest repetition of each counts. Time is the thread's processor
time: nothing here waits, and other load does not count.

    python -m benchmarks.coordinator_events [--quick]
"""

import argparse
import time
from collections import Counter, deque
from typing import Any

from unstale.coordinator.actions import SendTask
from unstale.coordinator.events import ClientJoined, HeartbeatReceived, RoundApplied, UpdateArrived
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.settings.learning import SelectorSettings, TriggerSettings

CLIENTS = 10_000
K = 100
BUDGET_EVENTS_PER_S = 50_000
EVERYONE = SelectorSettings()
A_TENTH = SelectorSettings(name="random", size=CLIENTS // 10)
RUNS = (  # trigger, selector, and whether each client contributes once a cycle
    (TriggerSettings(name="k-async", k=K), EVERYONE, False),
    (TriggerSettings(name="k-async", k=K), EVERYONE, True),
    (TriggerSettings(name="k-async", k=K), A_TENTH, False),
    (TriggerSettings(name="buffered", k=K), EVERYONE, False),
    (TriggerSettings(name="buffered", k=K), A_TENTH, False),
    (TriggerSettings(name="async"), EVERYONE, False),
    (TriggerSettings(name="sync"), EVERYONE, False),
)


def run(quick: bool = False) -> dict[str, Any]:
    """For each trigger and selector: events a second, and the ratio to the bare loop. quick: few events."""
    events, repeats = (20_000, 2) if quick else (200_000, 5)
    runs = []
    for trigger, selector, once_a_cycle in RUNS:
        coordinator_s, bare_s = [], []
        for _ in range(repeats):
            coordinator_s.append(_coordinator_s(trigger, selector, events, once_a_cycle))
            bare_s.append(_bare_s(events))
        runs.append(
            {
                "trigger": trigger.name + ", cycles" * once_a_cycle,
                "selector": selector.name,
                "events_per_s": events / min(coordinator_s),
                "bare_events_per_s": events / min(bare_s),
                "ratio": min(bare_s) / min(coordinator_s),
            }
        )
    return {
        "benchmark": "coordinator_events",
        "clients": CLIENTS,
        "k": K,
        "events": events,
        "budget_events_per_s": BUDGET_EVENTS_PER_S,
        "runs": runs,
    }


def _coordinator_s(trigger: TriggerSettings, selector: SelectorSettings, events: int, once_a_cycle: bool) -> float:
    """Seconds for so many events; RoundApplied is processed too, but not counted."""
    coordinator = Coordinator(
        CoordinatorSettings(
            clients=CLIENTS,
            rounds=events,
            trigger=trigger,
            selector=selector,
            seed=0,
            lease_s=60.0,
            evaluate_every=10,
            retry_s=1.0,
            min_clients=None,
            once_a_cycle=once_a_cycle,
        )
    )
    handle = coordinator.handle
    at_work: deque[SendTask] = deque()
    for client_id in range(CLIENTS):
        at_work.extend(_tasks(handle(ClientJoined(client_id=client_id, at_s=0.0))))
    started_s = time.thread_time()
    for number in range(events // 2):
        at_s = number * 1e-4
        handle(HeartbeatReceived(client_id=number * 7 % CLIENTS, at_s=at_s))
        task = at_work.popleft()
        actions = handle(
            UpdateArrived(
                client_id=task.client_id, task_id=task.task_id, base_version=task.version, handle=number, at_s=at_s
            )
        )
        at_work.extend(_tasks(actions))
        while coordinator.making is not None:
            actions = handle(RoundApplied(version=coordinator.version + 1, at_s=at_s))
            at_work.extend(_tasks(actions))
    elapsed_s = time.thread_time() - started_s
    assert coordinator.accepted == events // 2
    return elapsed_s


def _tasks(actions: list[Any]) -> list[SendTask]:
    return [action for action in actions if isinstance(action, SendTask)]


def _bare_s(events: int) -> float:
    counts: Counter[type] = Counter()
    started_s = time.thread_time()
    for number in range(events // 2):
        at_s = number * 1e-4
        counts[type(HeartbeatReceived(client_id=number * 7 % CLIENTS, at_s=at_s))] += 1
        counts[
            type(UpdateArrived(client_id=number % CLIENTS, task_id=1, base_version=0, handle=number, at_s=at_s))
        ] += 1
    elapsed_s = time.thread_time() - started_s
    assert counts.total() == events
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few events")
    figures = run(parser.parse_args().quick)
    print(f"{figures['clients']:,} clients, K = {figures['k']}; budget {figures['budget_events_per_s']:,} events/s")
    print(f"{'trigger':<17}{'selector':<10}{'events/s':>10}{'bare loop':>12}{'ratio':>8}")
    for one in figures["runs"]:
        print(
            f"{one['trigger']:<17}{one['selector']:<10}{one['events_per_s']:>10,.0f}"
            f"{one['bare_events_per_s']:>12,.0f}{one['ratio']:>8.2f}"
        )


if __name__ == "__main__":
    main()
