"""A run diverges when no participant makes updates that count, and not before."""

from unstale.coordinator import divergence, events
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.settings.learning import SelectorSettings, TriggerSettings


def coordinator_of(clients: int) -> Coordinator:
    settings = CoordinatorSettings(
        clients=clients,
        rounds=1000,
        trigger=TriggerSettings(name="async"),
        selector=SelectorSettings(),
        seed=0,
        lease_s=1e9,
        evaluate_every=1000,
        retry_s=1.0,
        min_clients=None,
    )
    coordinator = Coordinator(settings)
    for client_id in range(clients):
        coordinator.handle(events.ClientJoined(client_id=client_id, at_s=0.0))
    return coordinator


def fail(coordinator: Coordinator, client_id: int, at_s: float) -> None:
    open_id = coordinator.membership.clients[client_id].tasks.open_id
    assert open_id is not None
    coordinator.handle(events.TaskFailed(client_id=client_id, task_id=open_id, at_s=at_s))


def retry(coordinator: Coordinator, at_s: float) -> None:
    coordinator.handle(events.TimerFired(timer="retry", at_s=at_s))


def test_a_run_diverges_when_every_client_has_failed_ten_times_in_a_row() -> None:
    coordinator = coordinator_of(2)
    for attempt in range(10):
        fail(coordinator, 0, attempt)
        assert divergence.reason(coordinator) is None
        fail(coordinator, 1, attempt)
        if attempt < 9:
            assert divergence.reason(coordinator) is None
            retry(coordinator, attempt + 1)
    assert divergence.reason(coordinator) == (
        "training diverges: the last 20 tasks made no update that counts, all of them zero, not finite or otherwise "
        "refused, at version 0; lower training.learning_rate"
    )
    assert divergence.reason(coordinator, client_error="client 1: 'no file'") == (
        "every task fails: the last 20 tasks made no update that counts, at version 0; the last one: client 1: 'no "
        "file'; mend its cause, or lower training.learning_rate where training diverges"
    )


def test_one_client_that_always_fails_does_not_end_the_run() -> None:
    coordinator = coordinator_of(2)  # client 1 is at work all the time, and has not failed once
    for attempt in range(100):
        fail(coordinator, 0, attempt)
        assert divergence.reason(coordinator) is None
        # It gets a new task when it returns on another connection.
        coordinator.handle(events.ClientLeft(client_id=0, at_s=attempt))
        coordinator.handle(events.ClientJoined(client_id=0, at_s=attempt))
    assert coordinator.consecutive_failures == 100


def test_a_client_that_left_does_not_prevent_divergence() -> None:
    coordinator = coordinator_of(2)
    coordinator.handle(events.ClientLeft(client_id=1, at_s=0.0))
    for attempt in range(10):
        fail(coordinator, 0, attempt)
        if attempt < 9:
            retry(coordinator, attempt + 1)
    assert divergence.reason(coordinator) is not None
    coordinator.handle(events.ClientLeft(client_id=0, at_s=20.0))
    assert divergence.reason(coordinator) is None  # without clients there is no failure
