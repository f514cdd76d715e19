"""A journal in memory, which separates stored from noted events."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from unstale.coordinator import events, snapshot
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.journal import records
from unstale.journal.rows import Batch, EventRow, Location, UpdateRow
from unstale_proto.messages import Ack, Task


class PlayedJournal:
    """Stands in for `unstale.journal.journal.Journal`, as the server protocol uses it.

    is_full: no space for an update. events, updates, tasks: the stored ones.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.events: list[EventRow] = []
        self.updates: list[UpdateRow] = []
        self.tasks: set[int] = set()
        self.seq = 0
        self.batch = Batch()

    def note(self, event: events.Event, silent: Sequence[int] = ()) -> None:
        self.batch.events.append(records.to_row(self.next_seq(), event, silent))

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def append(self, row: memoryview, handle: int) -> Location:
        return Location(segment=1, offset=0, size_bytes=len(row), checksum=0)

    def settle(self) -> None:
        pass

    def has_room(self, size_bytes: int) -> bool:
        return not self.is_full

    sync_in_s = None

    def commit(self, *, durable: bool = False) -> None:
        self.events += self.batch.events
        self.updates += self.batch.updates
        self.tasks.update(task.task_id for task in self.batch.tasks)
        self.batch = Batch()

    def wants_checkpoint(self, version: int, *, ends: bool) -> bool:
        return ends or version == 2

    def begin_checkpoint(self) -> int:
        return self.seq

    def saved(self, version: int, seq: int, file: str, size_bytes: int, at_s: float) -> None:
        assert seq <= self.seq

    def give_up(self, why: str) -> str:
        return why

    def check_sent(self, message: Task | Ack) -> None:
        """Called before a message is sent to a client."""
        if isinstance(message, Task):
            assert message.task_id in self.tasks, f"{message} is sent before it is stored"
        elif message.first_outcome == "accepted":
            stored = any(update.staged.task_id == message.task_id and update.location for update in self.updates)
            assert stored, f"{message} is sent before it is stored"

    def check(self, coordinator: Coordinator, make: Callable[[], Coordinator]) -> None:
        """The stored events restore the same state, and the stored updates are the accepted ones."""
        assert not self.batch, f"{self.batch} was noted, and never stored"
        again = make()
        for row in sorted([*self.events, *map(records.arrival, self.updates)], key=attrgetter("seq")):
            records.replay(row, again)
        assert lasting(again) == lasting(coordinator)
        accepted = [update for update in self.updates if update.outcome == "accepted"]
        assert len(accepted) == coordinator.accepted
        assert all((update.location is None) == (update.outcome != "accepted") for update in self.updates)


PASSING = {"now_s", "duplicates", "rejected"}  # repeats are counted, and not stored


def lasting(coordinator: Coordinator) -> dict[str, Any]:
    """Its state without times of contact and repeats, which are not stored."""
    state = snapshot.taken(coordinator)
    kept = {name: value for name, value in state.items() if name not in PASSING}
    timers = {timer: due_s for timer, due_s in state["timers"].items() if timer != LEASE}
    return {**kept, "timers": timers, "leases": {client_id for client_id, _ in state["leases"]}}
