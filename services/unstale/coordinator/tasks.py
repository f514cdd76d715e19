"""Opens and closes tasks, and counts the versions of the model that they need."""

from collections.abc import Container, Sequence, Set
from dataclasses import dataclass, field

from unstale.coordinator.actions import Contribution, SendTask
from unstale.coordinator.membership import Client, Membership, State
from unstale.coordinator.settings import CoordinatorSettings


@dataclass(slots=True, eq=False)
class VersionReferences:
    """Number of open tasks and unaggregated updates by their base version.

    A task takes a reference and passes it to its update; it is released when that round is applied, or with a task
    without an update. The current version and the `window` versions before it, on which tasks may be given, need none.
    """

    window: int = 0
    current: int = 0
    counts: dict[int, int] = field(default_factory=lambda: {0: 0})
    dropped: list[int] = field(default_factory=list)  # became unneeded since the last call of `unneeded`

    @property
    def needed(self) -> Container[int]:
        """Versions that are needed."""
        return self.counts

    def take(self, version: int) -> None:
        """Add a reference to the current version, or to one in the window before it."""
        assert self.current - self.window <= version <= self.current, f"no task is given on version {version}"
        self.counts[version] += 1

    def release(self, version: int) -> None:
        """Remove a reference."""
        count = self.counts[version] = self.counts[version] - 1
        if count == 0:
            self._drop_if_unneeded(version)

    def advance(self) -> None:
        """Make the next version the current one."""
        self.current += 1
        self.counts[self.current] = 0
        leaves_window = self.current - self.window - 1
        if leaves_window >= 0:
            self._drop_if_unneeded(leaves_window)

    def unneeded(self) -> list[int]:
        """Versions that became unneeded since the last call, ascending."""
        versions, self.dropped = sorted(self.dropped), []
        return versions

    def _drop_if_unneeded(self, version: int) -> None:
        # References are only taken in the window, so a version outside of it never gets new ones.
        if self.counts[version] == 0 and version < self.current - self.window:
            del self.counts[version]
            self.dropped.append(version)


@dataclass(slots=True, eq=False)
class Tasks:
    """The tasks of all clients. The client's state, the version reference and the count change together."""

    _settings: CoordinatorSettings
    _membership: Membership
    references: VersionReferences = field(init=False)  # a task takes one and passes it to its update
    count: int = 0  # of tasks given

    def __post_init__(self) -> None:
        self.references = VersionReferences(window=self._settings.stale_rounds_max)

    def _choose(self, candidates: Sequence[int], busy: int, *key: int) -> Sequence[int]:
        settings = self._settings
        return settings.selector_part.choose(candidates, busy=busy, seed=settings.seed, key=key)

    def to_idle(self, first: tuple[Contribution, ...] = ()) -> list[SendTask]:
        """Fill the selector's places with waiting clients; senders of `first` come first, in this order."""
        membership = self._membership
        if not membership.waiting:
            return []
        chosen = self._choose(membership.waiting, membership.busy, self.references.current, self.count)
        if len(chosen) == 1:  # the usual case after an update: no order to keep
            return [self.give(membership.clients[chosen[0]])]
        if not first:
            return self._to(chosen)
        rank = {contribution.client_id: index for index, contribution in enumerate(first)}
        return self._to(sorted(chosen, key=lambda client_id: rank.get(client_id, len(rank))))

    def to_participants(self, *, again: bool = False) -> list[SendTask]:
        """Choose the participants of a round; stragglers take part with their open tasks. again: by another draw."""
        version, clients = self.references.current, self._membership.clients
        key = (version, self.count) if again else (version,)
        chosen = self._choose(self._membership.available, 0, *key)
        return self._to([client_id for client_id in chosen if clients[client_id].state is State.WAITING])

    def to_another(self, excluded: Set[int]) -> list[SendTask]:
        """Give the place of a participant that declined to a waiting client that is not excluded."""
        size = self._settings.selector_part.size
        if size is None:
            return []
        candidates = self._membership.waiting
        if excluded:
            candidates = [client_id for client_id in candidates if client_id not in excluded]
        return self._to(self._choose(candidates, size - 1, self.references.current, self.count))

    def give(self, client: Client) -> SendTask:
        """Open the next task of a waiting client."""
        client_id, number = client.client_id, client.tasks.count
        task_id = client.tasks.give()
        # t - T for a client that is T rounds stale, once there is such a version.
        version, stale = self.references.current, self._settings.stale_rounds.get(client_id, 0)
        version -= stale if version >= stale else 0
        client.base_version = version
        self.references.take(version)
        self.count += 1
        self._membership.move(client, State.WORKING)
        return SendTask(client_id=client_id, task_id=task_id, version=version, number=number)

    def close(self, client: Client, state: State) -> None:
        """End the open task of a client without an update, and change the client's state."""
        self.references.release(client.base_version)
        self.answer(client, state)

    def answer(self, client: Client, state: State) -> None:
        """End the open task of a client with an update, which keeps the version reference."""
        client.tasks.open_id = None
        self._membership.move(client, state)

    def _to(self, client_ids: Sequence[int]) -> list[SendTask]:
        clients = self._membership.clients
        # In descending order: `waiting` is a list, and its last element is removed without moving the others.
        return [self.give(clients[client_id]) for client_id in reversed(client_ids)][::-1]
