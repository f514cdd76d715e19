"""A run diverges when no participant makes updates that count, and not before."""

from unstale.coordinator import divergence, events, snapshot
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


Failure = type[events.TaskFailed | events.TaskRaised]


def fail(coordinator: Coordinator, client_id: int, at_s: float, kind: Failure = events.TaskFailed) -> None:
    open_id = coordinator.membership.clients[client_id].tasks.open_id
    assert open_id is not None
    coordinator.handle(kind(client_id=client_id, task_id=open_id, at_s=at_s))


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


def raises(coordinator: Coordinator, *client_ids: int, times: int = 10) -> None:
    """Code of these clients raises in each of their next tasks; they get one in each round that has stalled."""
    for _ in range(times):
        for client_id in client_ids:
            fail(coordinator, client_id, coordinator.now_s, events.TaskRaised)
        if "retry" in coordinator.timers:
            retry(coordinator, coordinator.now_s + 1)


def accept(coordinator: Coordinator, client_id: int) -> None:
    """The update of a client is accepted, and makes a version."""
    client = coordinator.membership.clients[client_id]
    assert client.tasks.open_id is not None
    coordinator.handle(
        events.UpdateArrived(
            client_id=client_id,
            task_id=client.tasks.open_id,
            base_version=client.base_version,
            handle=1,
            at_s=coordinator.now_s,
        )
    )
    coordinator.handle(events.RoundApplied(version=coordinator.version + 1, at_s=coordinator.now_s))


def leave(coordinator: Coordinator, client_id: int) -> None:
    coordinator.handle(events.ClientLeft(client_id=client_id, at_s=coordinator.now_s))


def test_a_run_ends_when_the_code_of_every_client_raises_from_the_start() -> None:
    coordinator = coordinator_of(2)
    raises(coordinator, 0, 1, times=9)
    assert divergence.reason(coordinator) is None
    raises(coordinator, 0, 1, times=1)
    assert divergence.reason(coordinator, "lower server.norm_max", "client 1: 'no rows'") == (
        "every task fails: the last 20 tasks made no update that counts, at version 0; the last one: client 1: 'no "
        "rows'; mend its cause, or lower training.learning_rate where training diverges"
    )


def test_one_client_whose_code_raises_waits_for_healthy_clients_that_left() -> None:
    coordinator = coordinator_of(3)
    accept(coordinator, 1)
    accept(coordinator, 2)
    leave(coordinator, 2)
    leave(coordinator, 1)
    raises(coordinator, 0, times=100)
    assert coordinator.consecutive_failures == 100
    assert divergence.reason(coordinator) is None
    # The same failures without an error of its code are divergence, as are those of the clients that return.
    fail_again(coordinator, 0, times=9)
    assert divergence.reason(coordinator) is None
    fail_again(coordinator, 0, times=1)
    assert str(divergence.reason(coordinator)).startswith("training diverges: ")


def fail_again(coordinator: Coordinator, client_id: int, times: int) -> None:
    for _ in range(times):
        fail(coordinator, client_id, coordinator.now_s)
        retry(coordinator, coordinator.now_s + 1)


def test_clients_that_left_without_an_update_or_after_a_failure_are_not_awaited() -> None:
    coordinator = coordinator_of(3)
    accept(coordinator, 1)
    raises(coordinator, 1, times=1)
    leave(coordinator, 1)
    leave(coordinator, 2)  # has not answered a task
    raises(coordinator, 0)
    assert str(divergence.reason(coordinator)).startswith("every task fails: the last 11 tasks ")


def test_clients_whose_code_raises_neither_hide_nor_confirm_divergence() -> None:
    coordinator = coordinator_of(2)
    raises(coordinator, 0, times=1)
    for _ in range(9):
        fail(coordinator, 1, coordinator.now_s)
        retry(coordinator, coordinator.now_s + 1)
        fail(coordinator, 0, coordinator.now_s, events.TaskRaised)
    assert divergence.reason(coordinator) is None
    fail(coordinator, 1, coordinator.now_s)
    assert divergence.reason(coordinator) == (
        "training diverges: the last 20 tasks made no update that counts, all of them zero, not finite or otherwise "
        "refused, at version 0; lower training.learning_rate"
    )


def test_an_accepted_update_resets_the_errors_of_a_client() -> None:
    coordinator = coordinator_of(1)
    raises(coordinator, 0, times=9)
    accept(coordinator, 0)
    assert coordinator.membership.clients[0].code_errors == 0
    raises(coordinator, 0, times=9)
    assert divergence.reason(coordinator) is None


def test_a_checkpoint_has_the_errors_of_each_client() -> None:
    coordinator = coordinator_of(2)
    raises(coordinator, 0, 1, times=10)
    restored = Coordinator(coordinator.settings)
    snapshot.restore(restored, snapshot.taken(coordinator))
    assert divergence.reason(restored) == divergence.reason(coordinator) is not None
    older = snapshot.taken(coordinator)
    for client in older["clients"]:
        del client["code_errors"]
    restored = Coordinator(coordinator.settings)
    snapshot.restore(restored, older)
    assert [client.code_errors for client in restored.membership.clients] == [0, 0]
