"""The coordinator's state as JSON values, for checkpoints."""

from dataclasses import asdict
from typing import Any

from unstale.coordinator.actions import Contribution, Outcome
from unstale.coordinator.admission import Verdict
from unstale.coordinator.events import UpdateArrived
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.membership import Client, State
from unstale.coordinator.phase import Phase

Plain = dict[str, Any]

_COUNTS = {name: name for name in ("accepted", "aggregated", "rejected", "duplicates", "failed", "declined")} | {
    "fruitless": "consecutive_failures"
}
"""Attribute of the coordinator by its key in checkpoints."""


def taken(coordinator: Coordinator) -> Plain:
    """The current state."""
    references, pending, making = coordinator.references, coordinator.pending, coordinator.making
    return {
        "now_s": coordinator.now_s,
        "phase": coordinator.phase.value,
        "round_started_s": coordinator.round_started_s,
        "timers": dict(coordinator.timers),
        **{key: getattr(coordinator, name) for key, name in _COUNTS.items()},
        "tasks_given": coordinator.tasks.count,
        "version": references.current,
        "references": list(references.counts.items()),
        "deadline_passed": coordinator.round.deadline_passed,
        "in_vain": sorted(coordinator.round.failed_clients),
        "making": None if making is None else [asdict(contribution) for contribution in making],
        "pending": [asdict(update) for update in pending],
        "parked": pending.parked,
        "contributed": sorted(pending.contributed),
        "leases": list(coordinator.leases.last_seen_s.items()),
        "sits_out": list(coordinator.membership.sits_out.items()),
        "clients": [_client(client) for client in coordinator.membership.clients if client.state is not State.ABSENT],
    }


def restore(coordinator: Coordinator, state: Plain) -> None:
    """Restore a state into a new coordinator with the same settings."""
    coordinator.now_s = state["now_s"]
    coordinator.phase = Phase(state["phase"])
    coordinator.round_started_s = state["round_started_s"]
    coordinator.timers = dict(state["timers"])
    for key, name in _COUNTS.items():
        setattr(coordinator, name, state[key])
    coordinator.tasks.count = state["tasks_given"]
    coordinator.references.current = state["version"]
    coordinator.references.counts = dict(state["references"])
    coordinator.round.deadline_passed = state["deadline_passed"]
    coordinator.round.failed_clients = set(state["in_vain"])
    making = state["making"]
    coordinator.making = None if making is None else tuple(Contribution(**fields) for fields in making)
    coordinator.pending.restore(
        [UpdateArrived(**update) for update in state["pending"]], state["parked"], state["contributed"]
    )
    for client_id, seen_s in state["leases"]:
        coordinator.leases.renew(client_id, seen_s)
    coordinator.membership.sits_out = dict(state.get("sits_out", ()))
    for client in state["clients"]:
        _restore_client(coordinator, client)


def without_clients(state: Plain, window: int) -> Plain:
    """The state of the same version before clients join: no open tasks; pending updates count as rejected."""
    idle = {"state": State.LEFT.name, "unaggregated": 0, "fruitless": 0, "code_errors": 0, "open_id": None}
    version: int = state["version"]
    dropped = len(state["pending"]) + len(state["making"] or ())
    is_finished = Phase(state["phase"]) is Phase.FINISHED
    return {
        **state,
        "phase": (Phase.FINISHED if is_finished else Phase.GATHERING).value,
        "round_started_s": None,
        "timers": {},
        "accepted": state["accepted"] - dropped,
        "rejected": state["rejected"] + dropped,
        "fruitless": 0,
        "references": [(number, 0) for number in range(max(0, version - window), version + 1)],
        "deadline_passed": False,
        "in_vain": [],
        "making": None,
        "pending": [],
        "parked": 0,
        "leases": [],
        "clients": [{**client, **idle} for client in state["clients"]],
    }


def _client(client: Client) -> Plain:
    return {
        "client_id": client.client_id,
        "state": client.state.name,
        "base_version": client.base_version,
        "unaggregated": client.unaggregated,
        "fruitless": client.consecutive_failures,
        "code_errors": client.code_errors,
        "expired": client.expired,
        "given": client.tasks.count,
        "open_id": client.tasks.open_id,
        "verdicts": [
            (number, verdict.outcome.value, None if verdict.reason is None else str(verdict.reason))
            for number, verdict in client.tasks.verdicts
        ],
    }


def _restore_client(coordinator: Coordinator, state: Plain) -> None:
    client = coordinator.membership.client(state["client_id"])
    coordinator.membership.restore(client, State[state["state"]])
    client.base_version = state["base_version"]
    client.unaggregated = state["unaggregated"]
    client.consecutive_failures = state["fruitless"]
    client.code_errors = state.get("code_errors", 0)
    client.expired = state.get("expired", 0)
    client.tasks.count = state["given"]
    client.tasks.open_id = state["open_id"]
    for number, outcome, reason in state["verdicts"]:
        client.tasks.record(number, Verdict(Outcome(outcome), reason))
