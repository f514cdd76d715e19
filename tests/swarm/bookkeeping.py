"""Totals over events, counted from one to the next, and the expected content of the stored run."""

from collections.abc import Mapping, Sequence
from typing import Any

from unstale.coordinator import actions, events, snapshot
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.journal.database import Conservation, Database


class Bookkeeping:
    """Totals over events, counted from one event to the next.

    given, accepted: by task. refused: tasks. rejected: verdicts that are stored. aggregated: tasks in rounds, including
    the one in aggregation. round: the last closed one. rounds: tasks by the resulting version.
    """

    def __init__(self) -> None:
        self.given: dict[int, actions.SendTask] = {}
        self.accepted: dict[int, events.UpdateArrived] = {}
        self.refused: set[int] = set()
        self.rejected = 0
        self.aggregated: set[int] = set()
        self.forgotten: set[int] = set()
        self.lost: set[int] = set()  # tasks declared lost
        self.round: tuple[actions.Contribution, ...] = ()
        self.rounds: dict[int, tuple[int, ...]] = {}

    def record(self, coordinator: Coordinator, event: events.Event, done: Sequence[actions.Action]) -> None:
        """An event, and its actions."""
        if isinstance(event, events.TaskLost):
            self.lost.add(event.task_id)
        if isinstance(event, events.RoundApplied):
            self.rounds[event.version] = tuple(one.task_id for one in self.round)
        for action in done:
            match action:
                case actions.SendTask():
                    self._send_task(coordinator, action)
                case actions.Acknowledge():
                    self._acknowledge(event, action)
                case actions.ApplyRound():
                    self._apply_round(coordinator, event, action)
                case actions.ForgetVersion(version=version):
                    assert version not in self.forgotten, f"version {version} is forgotten twice"
                    assert version < coordinator.version
                    self.forgotten.add(version)
                case _:
                    pass

    def check(self, coordinator: Coordinator) -> None:
        """Whether the coordinator has the same totals."""
        assert coordinator.accepted == len(self.accepted)
        making = coordinator.making or ()
        assert len(self.aggregated) == coordinator.aggregated + len(making)
        unaggregated = {update.task_id for update in coordinator.pending}
        assert self.aggregated.isdisjoint(unaggregated), "a pending update is already in a round"
        assert self.aggregated | unaggregated == self.accepted.keys(), (
            "the accepted updates differ from those in rounds and pending"
        )

    def _send_task(self, coordinator: Coordinator, action: actions.SendTask) -> None:
        assert action.task_id not in self.given, f"task {action.task_id} is assigned twice"
        assert action.version <= coordinator.version
        assert action.version not in self.forgotten, f"a task on version {action.version}, which is forgotten"
        self.given[action.task_id] = action

    def _acknowledge(self, event: events.Event, action: actions.Acknowledge) -> None:
        assert isinstance(event, events.UpdateArrived)
        task_id = action.task_id
        if action.outcome is actions.Outcome.ACCEPTED:
            given = self.given[task_id]
            assert given.client_id == action.client_id, "an update counts for a task of another client"
            assert given.version == event.base_version, "an update of another version counts"
            assert task_id not in self.accepted, f"the update of task {task_id} counts twice"
            assert task_id not in self.refused, f"the update of task {task_id} was refused, and counts"
            self.accepted[task_id] = event
        elif action.outcome is actions.Outcome.REJECTED:
            self.rejected += action.reason != actions.Reason.UNKNOWN_TASK
            if task_id in self.given:
                self.refused.add(task_id)

    def _apply_round(self, coordinator: Coordinator, event: events.Event, action: actions.ApplyRound) -> None:
        if isinstance(event, events.Resumed):
            assert action.contributions == self.round, "the aggregated round differs from the closed one"
            return
        for contribution in action.contributions:
            task_id = contribution.task_id
            assert task_id in self.accepted, f"a round holds task {task_id}, which was not accepted"
            assert task_id not in self.aggregated, f"two rounds hold task {task_id}"
            assert contribution.base_version not in self.forgotten
            assert contribution.base_version == self.given[task_id].version
            assert contribution.staleness == coordinator.version - contribution.base_version
            self.aggregated.add(task_id)
        self.round = action.contributions


def check_resumed(coordinator: Coordinator, undisturbed: Coordinator) -> None:
    """Whether a coordinator restored from the journal equals one without a restart."""
    found, expected = _state(coordinator), _state(undisturbed)
    for name in expected:
        assert found[name] == expected[name], (
            f"{name} of the run that was taken up is {found[name]}, without a crash it is {expected[name]}"
        )


def _state(coordinator: Coordinator) -> dict[str, Any]:
    """The state without times of contact and without repeats, which are not stored."""
    state = snapshot.taken(coordinator)
    for name in ("now_s", "leases", "rejected", "duplicates"):
        del state[name]
    state["timers"].pop(LEASE, None)
    return state


def check_stored(database: Database, bookkeeping: Bookkeeping, digests: Mapping[int, str]) -> None:
    """Whether the database matches the events: each update once, each round with its updates in order, and nothing
    else. digests: by version."""
    updates = list(database.updates_after(0))
    accepted = [row for row in updates if row.handle is not None]
    found = {row.staged.task_id: (row.staged.client_id, row.staged.base_version) for row in accepted}
    assert len(found) == len(accepted), "an update is stored twice"
    expected = {task_id: (one.client_id, one.base_version) for task_id, one in bookkeeping.accepted.items()}
    assert found == expected, "the stored updates differ from the accepted ones"
    task_of = {row.handle: row.staged.task_id for row in accepted}
    rounds = {row.version: row for row in database.rounds()}
    members = {version: tuple(task_of[one.handle] for one in row.members) for version, row in rounds.items()}
    assert members == bookkeeping.rounds, "the stored rounds differ from the aggregated ones"
    for version, row in rounds.items():
        assert row.digest == digests[version], f"version {version} is stored with another digest"
    aggregated = sum(map(len, members.values()))
    expected_counts = Conservation(
        received=len(bookkeeping.accepted) + bookkeeping.rejected,
        aggregated=aggregated,
        pending=len(bookkeeping.accepted) - aggregated,
        rejected=bookkeeping.rejected,
    )
    counts = database.conservation()
    assert counts == expected_counts, f"{counts} is stored, expected {expected_counts}"
