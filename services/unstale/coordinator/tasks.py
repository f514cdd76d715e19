"""Who is given a task, and on which version of the model; and what a task's end changes."""

from collections.abc import Set

from unstale.coordinator.actions import Contribution, SendTask
from unstale.coordinator.membership import Client, Membership, State
from unstale.coordinator.references import VersionReferences
from unstale.coordinator.settings import CoordinatorSettings


class Tasks:
    """Opens and closes the tasks of all clients: state, reference to a version and count change together.

    given: tasks so far. references: who needs which version; a task takes one, which goes over to its update.
    """

    def __init__(self, settings: CoordinatorSettings, membership: Membership) -> None:
        self.given = 0
        self.references = VersionReferences(window=settings.stale_rounds_max)
        self._seed = settings.seed
        self._size = settings.selector_part.size
        self._stale_rounds = settings.stale_rounds
        self._selector = settings.selector_part
        self._membership = membership

    # Given.

    def to_idle(self, first: tuple[Contribution, ...] = ()) -> list[SendTask]:
        """Fill the selector's places with clients that wait.

        first: contributions whose senders come before the other clients, in this order.
        """
        membership = self._membership
        if not membership.waiting:
            return []
        chosen = self._selector.choose(
            membership.waiting,
            busy=membership.busy,
            seed=self._seed,
            key=(self.references.current, self.given),
        )
        if len(chosen) == 1:  # as after most updates: there is no order to keep
            return [self.give(membership.clients[chosen[0]])]
        if not first:
            return self._to(list(chosen))
        rank = {contribution.client_id: index for index, contribution in enumerate(first)}
        return self._to(sorted(chosen, key=lambda client_id: rank.get(client_id, len(rank))))

    def to_participants(self, *, again: bool = False) -> list[SendTask]:
        """Choose who takes part in a round; a straggler among them works on, and takes part with what it has.

        again: in a round that had participants before, of whom nothing came: another draw, which may be of others.
        """
        version, clients = self.references.current, self._membership.clients
        key = (version, self.given) if again else (version,)
        chosen = self._selector.choose(self._membership.available, busy=0, seed=self._seed, key=key)
        return self._to([client_id for client_id in chosen if clients[client_id].state is State.WAITING])

    def to_another(self, passed_over: Set[int]) -> list[SendTask]:
        """Fill the place of a participant that declined with a client that was not asked in this round, so that `size`
        take part while so many are available. A selector without a size has asked everybody.

        passed_over: clients that wait, and were asked.
        """
        size = self._size
        if size is None:
            return []
        candidates = self._membership.waiting
        if passed_over:
            candidates = [client_id for client_id in candidates if client_id not in passed_over]
        key = (self.references.current, self.given)
        return self._to(list(self._selector.choose(candidates, busy=size - 1, seed=self._seed, key=key)))

    def give(self, client: Client) -> SendTask:
        """Open the next task of a client that has none."""
        client_id, number = client.client_id, client.tasks.given
        task_id = client.tasks.give()
        version = self._version_for(client_id) if self._stale_rounds else self.references.current
        client.base_version = version
        self.references.take(version)
        self.given += 1
        self._membership.move(client, State.WORKING)
        return SendTask(client_id=client_id, task_id=task_id, version=version, number=number)

    # Ended.

    def close(self, client: Client, state: State) -> None:
        """End the open task of a client without an update, and put the client into a state."""
        self.references.release(client.base_version)
        self.answer(client, state)

    def answer(self, client: Client, state: State) -> None:
        """End the open task of a client with an update, which keeps the reference."""
        client.tasks.open_id = None
        self._membership.move(client, state)

    def _version_for(self, client_id: int) -> int:
        """The current version t; t - T for a client that is T rounds stale, once there is one."""
        version, rounds = self.references.current, self._stale_rounds.get(client_id, 0)
        return version - rounds if version >= rounds else version

    def _to(self, client_ids: list[int]) -> list[SendTask]:
        clients = self._membership.clients
        # From the last to the first: those who wait are a list, and the last leaves it without moving the others.
        return [self.give(clients[client_id]) for client_id in reversed(client_ids)][::-1]
