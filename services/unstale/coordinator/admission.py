"""Validates updates against the tasks of their client. Task id = number * clients + client id + 1: no list is kept."""

from dataclasses import dataclass
from operator import itemgetter

from unstale.coordinator.actions import Outcome, Reason
from unstale.coordinator.events import UpdateArrived

REMEMBERED_VERDICTS = 16
"""Verdicts kept for each client. A repeated update is of its last answered task or the one before, unless many
acknowledgements are lost or the network delays copies. A copy of an older update is rejected as expired, so no update
counts twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of an update. reason: None exactly when it is accepted."""

    outcome: Outcome
    reason: str | None = None


ACCEPTED = Verdict(Outcome.ACCEPTED)
UNKNOWN_TASK = Verdict(Outcome.REJECTED, Reason.UNKNOWN_TASK)
EXPIRED_TASK = Verdict(Outcome.REJECTED, Reason.EXPIRED_TASK)
UNKNOWN_VERSION = Verdict(Outcome.REJECTED, Reason.UNKNOWN_VERSION)
RUN_FINISHED = Verdict(Outcome.REJECTED, Reason.RUN_FINISHED)


@dataclass(slots=True, eq=False)
class TaskHistory:
    """The tasks of one client, and the verdicts on the last ones."""

    _client_id: int
    _clients: int
    _verdicts: dict[int, Verdict] | None = None  # by number; made with the first
    count: int = 0  # of tasks given; the next task has this number
    open_id: int | None = None  # of the open task, which is the last given

    def give(self) -> int:
        """Open the next task and return its id."""
        assert self.open_id is None, f"client {self._client_id} already has task {self.open_id}"
        self.open_id = self.count * self._clients + self._client_id + 1
        self.count += 1
        return self.open_id

    def number_of(self, task_id: int) -> int | None:
        """Number of a task, from 0; None for one that the client was never given."""
        number, owner = divmod(task_id - 1, self._clients)
        return number if owner == self._client_id and 0 <= number < self.count else None

    def verdict_on(self, number: int) -> Verdict | None:
        """The verdict on a task's update; None where none arrived, or the verdict is forgotten."""
        return None if self._verdicts is None else self._verdicts.get(number)

    @property
    def verdicts(self) -> list[tuple[int, Verdict]]:
        """Remembered verdicts by task number, oldest first."""
        return sorted((self._verdicts or {}).items(), key=itemgetter(0))

    def record(self, number: int, verdict: Verdict) -> None:
        """Store the first verdict on a task; only the last `REMEMBERED_VERDICTS` are kept."""
        if self._verdicts is None:
            self._verdicts = {}
        assert number not in self._verdicts, "the first verdict on a task stands"
        self._verdicts[number] = verdict
        if len(self._verdicts) > REMEMBERED_VERDICTS:
            del self._verdicts[min(self._verdicts)]


def validate(tasks: TaskHistory, base_version: int, update: UpdateArrived, *, finished: bool) -> tuple[Verdict, bool]:
    """The verdict on an update, which is stored, and whether the update repeats an earlier one.

    An update for a task that the client was never given stores nothing. Any update for the open task closes it, because
    a client sends one update for a task and then waits.

    base_version: Of the sender's open task. finished: Whether the run is over.
    """
    answers_open_task = update.task_id == tasks.open_id
    if answers_open_task:
        number = tasks.count - 1  # the last that was given
    else:
        known = tasks.number_of(update.task_id)
        if known is None:
            return (RUN_FINISHED if finished else UNKNOWN_TASK), False
        first = tasks.verdict_on(known)
        if first is not None:
            return first, True
        number = known
    if finished:
        verdict = RUN_FINISHED
    elif not answers_open_task:
        verdict = EXPIRED_TASK
    elif update.base_version != base_version:
        verdict = UNKNOWN_VERSION
    elif update.defect is not None:
        verdict = Verdict(Outcome.REJECTED, update.defect)
    else:
        verdict = ACCEPTED
    tasks.record(number, verdict)
    return verdict, False
