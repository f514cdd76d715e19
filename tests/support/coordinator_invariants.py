"""Invariants of the coordinator after every event, computed from the state of every client."""

from collections import Counter

from unstale.coordinator.actions import Contribution
from unstale.coordinator.events import UpdateArrived
from unstale.coordinator.machine import DEADLINE, LEASE, RETRY, Coordinator
from unstale.coordinator.membership import ACTIVE, Client, State
from unstale.coordinator.phase import Phase


def check(coordinator: Coordinator) -> None:
    """Raise AssertionError where parts of the state contradict each other."""
    _check_membership(coordinator)
    _check_tasks(coordinator)
    _check_sitting_out(coordinator)
    _check_failures(coordinator)
    _check_updates(coordinator)
    _check_cycle(coordinator)
    _check_versions(coordinator)
    _check_leases(coordinator)
    _check_places(coordinator)
    _check_progress(coordinator)


def _check_membership(coordinator: Coordinator) -> None:
    membership = coordinator.membership
    states = Counter(client.state for client in membership.clients)
    assert membership.counts == [states[state] for state in State], "the counts differ from those of the clients"
    assert [client.client_id for client in membership.clients] == list(range(coordinator.settings.clients))
    for name, ids, group in (
        ("active", membership.active, ACTIVE),
        ("waiting", membership.waiting, {State.WAITING}),
        ("unavailable", membership.unavailable, {State.UNAVAILABLE}),
    ):
        expected = [client.client_id for client in membership.clients if client.state in group]
        assert ids == expected, f"{name} is {ids}, and the clients say {expected}"


def _check_sitting_out(coordinator: Coordinator) -> None:
    membership = coordinator.membership
    for client_id, until in membership.sits_out.items():
        assert membership.clients[client_id].state not in (State.WAITING, State.WORKING), (
            "a client sits out and may get tasks"
        )
        assert until > coordinator.version, "it sits out too long"


def _check_tasks(coordinator: Coordinator) -> None:
    clients = coordinator.membership.clients
    assert coordinator.tasks.count == sum(client.tasks.count for client in clients)
    open_ids = [client.tasks.open_id for client in clients if client.tasks.open_id is not None]
    assert len(set(open_ids)) == len(open_ids), "a task is open with two clients"
    for client in clients:
        tasks = client.tasks
        assert (client.state is State.WORKING) == (tasks.open_id is not None), (
            f"client {client.client_id} is {client.state.name} with open task {tasks.open_id}"
        )
        if tasks.open_id is not None:
            last = tasks.count - 1
            assert tasks.number_of(tasks.open_id) == last, "an open task is not the last assigned one"
            assert tasks.verdict_on(last) is None, "an open task has its verdict already"


def _check_failures(coordinator: Coordinator) -> None:
    assert 0 <= coordinator.consecutive_failures <= coordinator.rejected + coordinator.failed
    for client in coordinator.membership.clients:
        assert 0 <= client.code_errors <= client.consecutive_failures
    ended = coordinator.tasks.count - coordinator.membership.outstanding
    in_vain = coordinator.consecutive_failures + coordinator.declined
    assert coordinator.accepted + in_vain <= ended, "a task ended twice"


def _check_updates(coordinator: Coordinator) -> None:
    making = coordinator.making or ()
    unaggregated: list[Contribution | UpdateArrived] = [*making, *coordinator.pending]
    assert coordinator.accepted == coordinator.aggregated + len(unaggregated), "an update is lost or duplicated"
    # An open task can add one without another event.
    may_be_unaggregated = len(unaggregated) + coordinator.membership.outstanding
    assert may_be_unaggregated <= coordinator.settings.unaggregated_max, "too many unaggregated updates"
    assert len(making) <= coordinator.settings.round_size_max
    for name in ("handle", "task_id"):
        values = [getattr(update, name) for update in unaggregated]
        assert len(set(values)) == len(values), f"two unaggregated updates have one {name}"
    of_client = Counter(update.client_id for update in unaggregated)
    for client in coordinator.membership.clients:
        _check_contributions(client, of_client[client.client_id], coordinator.trigger.frees_sender)
    for contribution in making:
        assert contribution.staleness >= 0
    assert coordinator.making is None or coordinator.phase in (Phase.MAKING, Phase.FINISHED)
    assert coordinator.phase is not Phase.MAKING or coordinator.making is not None


def _check_contributions(client: Client, unaggregated: int, frees_sender: bool) -> None:
    """Check one client against its updates that are not aggregated.

    Args:
        client: to check.
        unaggregated: number of its updates.
        frees_sender: whether a client gets a task while its update waits.
    """
    assert client.unaggregated == unaggregated
    if not frees_sender:
        assert client.unaggregated + (client.tasks.open_id is not None) <= 1, "a client contributes twice"
        assert client.state is not State.WAITING or client.unaggregated == 0
    if client.state is State.CONTRIBUTED:
        assert client.unaggregated == 1, "a client waits for a round without its update"
        assert not frees_sender


def _check_versions(coordinator: Coordinator) -> None:
    needed = Counter(client.base_version for client in coordinator.membership.clients if client.tasks.open_id)
    needed.update(contribution.base_version for contribution in coordinator.making or ())
    needed.update(update.base_version for update in coordinator.pending)
    counts = coordinator.references.counts
    current = coordinator.version
    assert current <= coordinator.settings.rounds
    assert max(counts) == current, "a reference to a version that does not exist yet"
    for version in range(max(0, current - coordinator.settings.stale_rounds_max), current + 1):
        needed.setdefault(version, 0)  # a task can still be assigned on it
    assert counts == needed, f"versions are referred to {counts}, and needed {dict(needed)}"
    for client_id, rounds in coordinator.settings.stale_rounds.items():
        client = coordinator.membership.clients[client_id]
        if client.tasks.open_id is not None:
            base = client.base_version
            assert current - base >= rounds or base < rounds, f"client {client_id} is not stale enough"


def _check_leases(coordinator: Coordinator) -> None:
    leases = coordinator.leases
    seen_s = list(leases.last_seen_s.values())
    assert sorted(leases.last_seen_s) == coordinator.membership.active, "leases differ from the active clients"
    assert seen_s == sorted(seen_s), "leases are not in order of expiry"
    assert all(seen <= coordinator.now_s for seen in seen_s)
    if LEASE in coordinator.timers and seen_s:
        assert coordinator.timers[LEASE] <= leases.next_expiry_s(), "a lease can expire unnoticed"


def _check_places(coordinator: Coordinator) -> None:
    size = coordinator.settings.selector_part.size
    # With a deadline, stragglers of earlier rounds are busy besides the selected clients.
    if size is not None and coordinator.settings.trigger.name != "deadline":
        assert coordinator.membership.outstanding <= size, "more clients are busy than the selector has places"


def _awaited(coordinator: Coordinator) -> int:
    """Open tasks of clients that may still contribute to this cycle."""
    return sum(
        client.tasks.open_id is not None and client.client_id not in coordinator.pending.contributed
        for client in coordinator.membership.clients
    )


def _check_cycle(coordinator: Coordinator) -> None:
    pending = coordinator.pending
    ready, parked = list(pending)[: pending.ready], list(pending)[pending.ready :]
    assert pending.once_a_cycle or not (parked or pending.contributed)
    assert coordinator.membership.awaited == _awaited(coordinator), "working clients of the cycle are miscounted"
    assert len(pending.contributed) < coordinator.settings.clients, "a complete cycle continues"
    assert all(update.client_id not in pending.contributed for update in ready), "a client has two turns"
    assert all(update.client_id in pending.contributed for update in parked), "a client waits without a reason"


def _check_progress(coordinator: Coordinator) -> None:
    """An event is pending, a timer is set, or no client is active."""
    phase, membership, timers = coordinator.phase, coordinator.membership, coordinator.timers
    assert set(timers) <= {LEASE, DEADLINE, RETRY}
    if phase is Phase.FINISHED:
        assert not timers, "a timer is set after the end"
        return
    if membership.active and coordinator.leases.next_expiry_s() < float("inf"):
        assert LEASE in timers, "no timer watches the leases"
    if phase in (Phase.GATHERING, Phase.IDLE):
        _check_before_a_round(coordinator)
    stalled = phase is Phase.OPEN and _has_stalled(coordinator)
    assert (RETRY in timers) == stalled, "the retry timer is set exactly while the round has stalled"
    if phase is Phase.OPEN and not stalled:
        _check_open_round(coordinator)
    assert DEADLINE not in timers or phase is Phase.OPEN


def _check_before_a_round(coordinator: Coordinator) -> None:
    membership = coordinator.membership
    if coordinator.phase is Phase.GATHERING:
        assert membership.outstanding == 0 and not coordinator.pending and coordinator.making is None
        assert len(membership.active) < coordinator.settings.clients_to_start
    else:
        assert coordinator.trigger.in_rounds
        assert not membership.active, "a client has joined, and no round was opened"


def _has_stalled(coordinator: Coordinator) -> bool:
    """Whether an open round has active clients, and no pending event can close it."""
    membership = coordinator.membership
    if coordinator.pending or membership.outstanding or not membership.active:
        return False
    nobody_is_asked = not (coordinator.trigger.in_rounds or membership.unavailable)
    is_sitting_out = any(client_id in membership.sits_out for client_id in membership.unavailable)
    return bool(coordinator.round.failed_clients) or is_sitting_out or nobody_is_asked


def _check_open_round(coordinator: Coordinator) -> None:
    took = coordinator.trigger.take(
        pending=coordinator.pending.ready, outstanding=_awaited(coordinator), due=coordinator.round.deadline_passed
    )
    assert took is None, "a round that could close is open"
    under_way = coordinator.membership.outstanding > 0 or DEADLINE in coordinator.timers
    assert under_way or not coordinator.membership.active, "the run is stuck"
