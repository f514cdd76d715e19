"""Opens and closes tasks, and counts their references to model versions."""

from collections.abc import Container, Sequence, Set
from dataclasses import dataclass, field

from unstale.coordinator.actions import Contribution, SendTask
from unstale.coordinator.membership import Client, Membership, State
from unstale.coordinator.selectors import SELECTORS
from unstale.coordinator.settings import CoordinatorSettings
from unstale.errors import UserError


@dataclass(slots=True, eq=False)
class VersionReferences:
    """Number of open tasks and unaggregated updates by their base version. Other versions can be deleted.

    A task takes a reference and passes it to its update. It is released when the update's round is applied or the task
    closes without an update. New tasks may be on the current version and `window` earlier ones: all these are needed.
    """

    window: int = 0  # versions
    current: int = 0
    counts: dict[int, int] = field(default_factory=lambda: {0: 0})
    dropped: list[int] = field(default_factory=list)  # unneeded since the last call of `take_unneeded`

    @property
    def needed(self) -> Container[int]:
        """Versions that are referenced or in the window."""
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
        out_of_window = self.current - self.window - 1
        if out_of_window >= 0:
            self._drop_if_unneeded(out_of_window)

    def take_unneeded(self) -> list[int]:
        """Versions that became unneeded since the last call, ascending."""
        versions, self.dropped = sorted(self.dropped), []
        return versions

    def _drop_if_unneeded(self, version: int) -> None:
        # New references are only to versions in the window: a version outside of it stays unneeded.
        if self.counts[version] == 0 and version < self.current - self.window:
            del self.counts[version]
            self.dropped.append(version)


@dataclass(slots=True, eq=False)
class Tasks:
    """The tasks of all clients. Each method changes client state, version references and `count` together."""

    _settings: CoordinatorSettings
    _membership: Membership
    references: VersionReferences = field(init=False)
    count: int = 0  # tasks given in the run

    def __post_init__(self) -> None:
        self.references = VersionReferences(window=self._settings.stale_rounds_max)

    def _choose(self, candidates: Sequence[int], busy: int, *key: int) -> Sequence[int]:
        settings = self._settings
        chosen = settings.selector_part.choose(candidates, busy=busy, seed=settings.seed, key=key)
        if settings.selector.name not in SELECTORS and list(chosen) != sorted({*chosen}.intersection(candidates)):
            raise UserError(
                f"selector {settings.selector.name!r} chooses {list(chosen)!r:.80}, expected some of the clients "
                f"{list(candidates)!r:.80}, each once and ascending"
            )
        return chosen

    def give_to_waiting(self, applied: tuple[Contribution, ...] = ()) -> list[SendTask]:
        """Give tasks to waiting clients that the selector chooses, in the order of their updates in `applied`."""
        membership = self._membership
        if not membership.waiting:
            return []
        chosen = self._choose(membership.waiting, membership.busy, self.references.current, self.count)
        if len(chosen) == 1:  # the usual case after an update
            return [self.give(membership.clients[chosen[0]])]
        if not applied:
            return self._give_all(chosen)
        rank = {contribution.client_id: index for index, contribution in enumerate(applied)}
        return self._give_all(sorted(chosen, key=lambda client_id: rank.get(client_id, len(rank))))

    def give_to_participants(self, *, again: bool = False) -> list[SendTask]:
        """Draw the participants of a round; those that still work keep their open tasks. again: by another draw."""
        version, clients = self.references.current, self._membership.clients
        key = (version, self.count) if again else (version,)
        chosen = self._choose(self._membership.available, 0, *key)
        return self._give_all([client_id for client_id in chosen if clients[client_id].state is State.WAITING])

    def give_to_substitute(self, excluded: Set[int]) -> list[SendTask]:
        """Replace a participant that declined its task by a waiting client that is not excluded."""
        size = self._settings.selector_part.size
        if size is None:
            return []
        candidates = self._membership.waiting
        if excluded:
            candidates = [client_id for client_id in candidates if client_id not in excluded]
        return self._give_all(self._choose(candidates, size - 1, self.references.current, self.count))

    def give(self, client: Client) -> SendTask:
        """Open the next task of a waiting client."""
        client_id, number = client.client_id, client.tasks.count
        task_id = client.tasks.give()
        # A client with a configured staleness trains on an earlier version, once there is one.
        version, stale = self.references.current, self._settings.stale_rounds.get(client_id, 0)
        version -= stale if version >= stale else 0
        client.base_version = version
        self.references.take(version)
        self.count += 1
        self._membership.move(client, State.WORKING)
        return SendTask(client_id=client_id, task_id=task_id, version=version, number=number)

    def close(self, client: Client, state: State) -> None:
        """Close the open task of a client without an update, and change the client's state."""
        self.references.release(client.base_version)
        self.close_with_update(client, state)

    def close_with_update(self, client: Client, state: State) -> None:
        """Close the open task of a client whose update is accepted: the update keeps the version reference."""
        client.tasks.open_id = None
        self._membership.move(client, state)

    def _give_all(self, client_ids: Sequence[int]) -> list[SendTask]:
        clients = self._membership.clients
        # Ids are mostly ascending, as in the list `waiting`: from its end, a removal moves the fewest elements.
        return [self.give(clients[client_id]) for client_id in reversed(client_ids)][::-1]
