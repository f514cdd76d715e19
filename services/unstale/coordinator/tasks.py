"""Opens and closes tasks."""

from collections.abc import Set

from unstale.coordinator.actions import Contribution, SendTask
from unstale.coordinator.membership import Client, Membership, State
from unstale.coordinator.references import VersionReferences
from unstale.coordinator.settings import CoordinatorSettings


class Tasks:
    """The tasks of all clients. The client's state, the version reference and the count change together.

    Attributes:
        count: Number of tasks given.
        references: Version references; a task takes one and passes it to its update.
    """

    def __init__(self, settings: CoordinatorSettings, membership: Membership) -> None:
        self.count = 0
        self.references = VersionReferences(window=settings.stale_rounds_max)
        self._seed = settings.seed
        self._size = settings.selector_part.size
        self._stale_rounds = settings.stale_rounds
        self._selector = settings.selector_part
        self._membership = membership

    def to_idle(self, first: tuple[Contribution, ...] = ()) -> list[SendTask]:
        """Fill the selector's places with waiting clients; senders of `first` come first, in this order."""
        membership = self._membership
        if not membership.waiting:
            return []
        chosen = self._selector.choose(
            membership.waiting, busy=membership.busy, seed=self._seed, key=(self.references.current, self.count)
        )
        if len(chosen) == 1:  # the usual case after an update: no order to keep
            return [self.give(membership.clients[chosen[0]])]
        if not first:
            return self._to(list(chosen))
        rank = {contribution.client_id: index for index, contribution in enumerate(first)}
        return self._to(sorted(chosen, key=lambda client_id: rank.get(client_id, len(rank))))

    def to_participants(self, *, again: bool = False) -> list[SendTask]:
        """Choose the participants of a round; a straggler among them takes part with its open task.

        again: the round has stalled, so another draw follows.
        """
        version, clients = self.references.current, self._membership.clients
        key = (version, self.count) if again else (version,)
        chosen = self._selector.choose(self._membership.available, busy=0, seed=self._seed, key=key)
        return self._to([client_id for client_id in chosen if clients[client_id].state is State.WAITING])

    def to_another(self, excluded: Set[int]) -> list[SendTask]:
        """Give the place of a participant that declined to a waiting client that is not excluded.

        A selector without a size has chosen all clients already.
        """
        size = self._size
        if size is None:
            return []
        candidates = self._membership.waiting
        if excluded:
            candidates = [client_id for client_id in candidates if client_id not in excluded]
        key = (self.references.current, self.count)
        return self._to(list(self._selector.choose(candidates, busy=size - 1, seed=self._seed, key=key)))

    def give(self, client: Client) -> SendTask:
        """Open the next task of a waiting client."""
        client_id, number = client.client_id, client.tasks.count
        task_id = client.tasks.give()
        version = self._version_for(client_id) if self._stale_rounds else self.references.current
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

    def _version_for(self, client_id: int) -> int:
        """The current version t; t - T for a client that is T rounds stale, once there is such a version."""
        version, rounds = self.references.current, self._stale_rounds.get(client_id, 0)
        return version - rounds if version >= rounds else version

    def _to(self, client_ids: list[int]) -> list[SendTask]:
        clients = self._membership.clients
        # In descending order: `waiting` is a list, and its last element is removed without moving the others.
        return [self.give(clients[client_id]) for client_id in reversed(client_ids)][::-1]
