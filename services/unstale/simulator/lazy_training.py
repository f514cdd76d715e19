"""Trains simulated clients when their updates arrive, together with the next ones where the backend gains by it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from unstale.coordinator.machine import DEADLINE, Coordinator
from unstale.learner.versions import Version
from unstale.simulator.backends.backend import Backend, Job, Result
from unstale.simulator.encoded import Encoded
from unstale.simulator.event_queue import EventQueue
from unstale_proto.limits import FLOAT_BYTES
from unstale_proto.messages import Task

_TURNS_AHEAD = 8  # jobs for each that the backend computes side by side: none of them is idle for long
_CYCLES_LEFT_MIN = 4  # updates to come of each client at work: all that are at work now will be in by then
_AHEAD_BYTES_MAX = 256 * 1024 * 1024  # of results that wait


class LazyTraining:
    """Results of tasks.

    A backend that computes several jobs side by side also gets the tasks that arrive next, each from its own base
    version; but no more than the run will take, so that an update that never arrives costs nothing.
    """

    def __init__(
        self,
        backend: Backend,
        encoded: Encoded,
        coordinator: Coordinator,
        event_queue: EventQueue,
        settings: Mapping[str, Any],
    ) -> None:
        """encoded: gives base versions. coordinator: gives open tasks. event_queue: gives the next ones. settings: that
        the server sends to clients.
        """
        self._backend = backend
        self._encoded = encoded
        self._coordinator = coordinator
        self._event_queue = event_queue
        self._rounds = coordinator.settings.rounds
        self._settings = settings
        self._made: dict[tuple[int, int], tuple[Task, Result]] = {}  # by client and task id
        self._damaged: dict[tuple[int, int], Version] = {}
        fit = _AHEAD_BYTES_MAX // (FLOAT_BYTES * encoded.row_numbers)
        at_a_time = backend.at_a_time
        self._most = 1 if at_a_time == 1 else max(at_a_time, min(_TURNS_AHEAD * at_a_time, fit))

    def of(self, client_id: int, task: Task) -> Result:
        """The result of an open task; kept until `forget`."""
        key = client_id, task.task_id
        if key not in self._made:
            together = self._coming(client_id) if self._most > 1 else ()
            self._compute([(client_id, task), *together])
        return self._made[key][1]

    def damage(self, client_id: int, task: Task, base: Version) -> None:
        """Replace the base version of a task."""
        self._damaged[client_id, task.task_id] = base

    def forget(self, client_id: int, task_id: int) -> None:
        """Forget the result of a task whose update has a verdict."""
        self._made.pop((client_id, task_id), None)
        self._damaged.pop((client_id, task_id), None)

    def _coming(self, client_id: int) -> Sequence[tuple[int, Task]]:
        """Tasks that are computed together with the one of a client."""
        most = min(self._most, self._certain_tasks()) - 1
        if most < 1:
            return ()

        chosen = {client_id}  # copies of an update come in as well

        def is_wanted(other: int, task: Task) -> bool:
            key = other, task.task_id
            if other in chosen or key in self._made or not self._coordinator.awaits(*key):
                return False
            chosen.add(other)
            return True

        return self._event_queue.upcoming(is_wanted, most, self._coordinator.timers.get(DEADLINE, inf))

    def _certain_tasks(self) -> int:
        """Number of the next updates that some round will take."""
        coordinator, waiting = self._coordinator, len(self._coordinator.pending)
        size = coordinator.settings.round_size_max
        if coordinator.trigger.cuts_off:
            return size - waiting
        if coordinator.trigger.in_rounds:
            return coordinator.membership.outstanding
        to_come = (self._rounds - coordinator.version) * size - waiting
        if to_come > _CYCLES_LEFT_MIN * coordinator.membership.outstanding:
            return to_come
        # Near the end, who is given a task now may come before those at work, and the run ends without them.
        return 1 if coordinator.trigger.frees_sender else size - waiting

    def _compute(self, tasks: Sequence[tuple[int, Task]]) -> None:
        if len(self._made) + len(self._damaged) > self._most:
            self._drop_unneeded()
        jobs = [
            Job(
                client_id=client_id,
                number=task.number,
                base=self._base(client_id, task),
                learning_rate=task.learning_rate,
                evaluate=bool(task.evaluate),
                version=task.version,
                settings=self._settings,
            )
            for client_id, task in tasks
        ]
        for (client_id, task), computed in zip(tasks, self._backend.compute(jobs), strict=True):
            self._made[client_id, task.task_id] = task, computed

    def _base(self, client_id: int, task: Task) -> Version:
        damaged = self._damaged.get((client_id, task.task_id)) if self._damaged else None
        return self._encoded.version(task.version) if damaged is None else damaged

    def _drop_unneeded(self) -> None:
        """Drop results of tasks that were taken back since."""
        for (client_id, task_id), (task, _) in list(self._made.items()):
            if not self._coordinator.awaits(client_id, task_id):
                self.forget(client_id, task_id)
                self._backend.drop(client_id, task.number)
        for client_id, task_id in list(self._damaged):
            if not self._coordinator.awaits(client_id, task_id):
                self.forget(client_id, task_id)
