"""Print a digest of every action of random runs for each trigger and selector, with and without tasks that are declined
and lost. A program, for the determinism test."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

from unstale.coordinator import actions, events
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.coordinator.triggers import TRIGGERS as TRIGGER_TYPES
from unstale.seeds import Stream, stream
from unstale.settings.learning import SelectorSettings, TriggerSettings

CLIENTS, STEPS = 12, 1500
TRIGGERS = (
    TriggerSettings(name="sync"),
    TriggerSettings(name="k-sync", k=3),
    TriggerSettings(name="k-async", k=3),
    TriggerSettings(name="async"),
    TriggerSettings(name="buffered", k=3),
    TriggerSettings(name="deadline", wait_s=3.0),
)
SELECTORS = (SelectorSettings(), SelectorSettings(name="random", size=5))
IN_TURN = SelectorSettings(name="round-robin", size=5)
LEAST_AVAILABLE = SelectorSettings(name="availability", size=5)


Handle = Callable[[Coordinator, events.Event], list[actions.Action]]


def trace(
    trigger: TriggerSettings,
    selector: SelectorSettings,
    *,
    once_a_cycle: bool = False,
    stale_rounds: Mapping[int, int] = MappingProxyType({}),
    tasks_go_astray: bool = False,
    handle: Handle = Coordinator.handle,
    before: Callable[[Coordinator], Coordinator] = lambda coordinator: coordinator,
) -> list[actions.Action]:
    """All actions of a run with random events of random clients.

    tasks_go_astray: whether clients decline tasks, too, and tasks are lost. handle: in place of the coordinator's own.
    before: its result replaces the coordinator, before each event.
    """
    coordinator = Coordinator(
        CoordinatorSettings(
            clients=CLIENTS,
            rounds=100_000,
            trigger=trigger,
            selector=selector,
            seed=7,
            lease_s=20.0,
            evaluate_every=5,
            retry_s=1.0,
            min_clients=None,
            availability=(0.2, 0.5, 0.5, 0.9) * 3,
            once_a_cycle=once_a_cycle,
            stale_rounds=stale_rounds,
        )
    )
    draws = stream(1, Stream.LATENCY, 0, 0)
    now_s = 0.0
    trace: list[actions.Action] = []
    for step in range(STEPS):
        coordinator = before(coordinator)
        now_s += float(draws.exponential(0.2))
        client = coordinator.membership.clients[int(draws.integers(CLIENTS))]
        event: events.Event
        due = [timer for timer, due_s in coordinator.timers.items() if due_s <= now_s]
        if due:
            event = events.TimerFired(timer=min(due), at_s=now_s)
        elif coordinator.making is not None and draws.random() < 0.5:
            event = events.RoundApplied(version=coordinator.version + 1, at_s=now_s)
        elif not coordinator.is_active(client.client_id) or draws.random() < 0.02:
            event = events.ClientJoined(client_id=client.client_id, at_s=now_s)
        elif draws.random() < 0.02:
            event = events.ClientLeft(client_id=client.client_id, at_s=now_s)
        elif tasks_go_astray and client.tasks.open_id is not None and draws.random() < 0.4:
            kinds = (events.TaskDeclined, events.TaskLost, events.TaskExpired)
            kind = kinds[int(draws.choice(3, p=(0.5, 0.3, 0.2)))]
            event = kind(client_id=client.client_id, task_id=client.tasks.open_id, at_s=now_s)
        elif client.tasks.open_id is not None and draws.random() < 0.7:
            defect = "non-finite" if draws.random() < 0.1 else None
            event = events.UpdateArrived(
                client_id=client.client_id,
                task_id=client.tasks.open_id,
                base_version=client.base_version,
                handle=step,
                at_s=now_s,
                defect=defect,
            )
        else:
            event = events.HeartbeatReceived(client_id=client.client_id, at_s=now_s)
        trace += handle(coordinator, event)
    assert coordinator.version > 5, "a run in which nothing happens shows nothing"
    return trace


if __name__ == "__main__":
    digest = hashlib.sha256()
    for trigger in TRIGGERS:
        for selector in SELECTORS:
            with_cycles = trigger.name in ("k-async", "async") and selector.size is None
            cycles = (False, True) if with_cycles else (False,)
            for once_a_cycle in cycles:
                digest.update(repr(trace(trigger, selector, once_a_cycle=once_a_cycle)).encode())
    for trigger in TRIGGERS:
        in_rounds = TRIGGER_TYPES[trigger.name].in_rounds
        stale_rounds = {1: 1, 4: 3} if in_rounds else {}
        for selector in (*SELECTORS, LEAST_AVAILABLE, *([IN_TURN] if in_rounds else [])):
            run = trace(trigger, selector, stale_rounds=stale_rounds, tasks_go_astray=True)
            digest.update(repr(run).encode())
    sys.stdout.write(digest.hexdigest())
