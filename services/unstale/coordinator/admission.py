"""Validates updates against the tasks of their client. Task id = number * clients + client id + 1."""

from dataclasses import dataclass
from operator import itemgetter

from unstale.coordinator.actions import Outcome, Reason
from unstale.coordinator.events import UpdateArrived

REMEMBERED_VERDICTS = 16
"""Verdicts kept for each client. Clients repeat updates for their last two answered tasks, unless many acknowledgements
are lost or the network delays copies. Copies of older updates are rejected as expired, so no update counts twice."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of an update. reason: None if and only if accepted."""

    outcome: Outcome
    reason: str | None = None


ACCEPTED = Verdict(Outcome.ACCEPTED)
UNKNOWN_TASK = Verdict(Outcome.REJECTED, Reason.UNKNOWN_TASK)
EXPIRED_TASK = Verdict(Outcome.REJECTED, Reason.EXPIRED_TASK)
UNKNOWN_VERSION = Verdict(Outcome.REJECTED, Reason.UNKNOWN_VERSION)
RUN_FINISHED = Verdict(Outcome.REJECTED, Reason.RUN_FINISHED)


@dataclass(slots=True, eq=False)
class TaskHistory:
    """The tasks of one client, and the latest verdicts on their updates."""

    _client_id: int
    _clients: int
    _verdicts: dict[int, Verdict] | None = None  # by task number; None before the first, to save memory
    count: int = 0  # tasks so far; the next task has this number
    open_id: int | None = None  # id of the open task, which is the latest one; None without one

    def give(self) -> int:
        """Open the next task and return its id."""
        assert self.open_id is None, f"client {self._client_id} already has task {self.open_id}"
        self.open_id = self.count * self._clients + self._client_id + 1
        self.count += 1
        return self.open_id

    def number_of(self, task_id: int) -> int | None:
        """Number of a task, from 0; None if the client never had this task."""
        number, owner = divmod(task_id - 1, self._clients)
        return number if owner == self._client_id and 0 <= number < self.count else None

    def verdict_on(self, number: int) -> Verdict | None:
        """The verdict on a task's update; None without an update, or if newer verdicts have replaced it."""
        return None if self._verdicts is None else self._verdicts.get(number)

    @property
    def verdicts(self) -> list[tuple[int, Verdict]]:
        """Remembered verdicts by task number, oldest first."""
        return sorted((self._verdicts or {}).items(), key=itemgetter(0))

    @property
    def accepted_id(self) -> int:
        """Id of the newest task whose update was accepted, by the remembered verdicts; 0 for none."""
        verdicts = self._verdicts or {}
        accepted = [number for number, verdict in verdicts.items() if verdict.outcome is Outcome.ACCEPTED]
        return max(accepted) * self._clients + self._client_id + 1 if accepted else 0

    def record(self, number: int, verdict: Verdict) -> None:
        """Store the first verdict on a task; only the last `REMEMBERED_VERDICTS` are kept."""
        if self._verdicts is None:
            self._verdicts = {}
        assert number not in self._verdicts, "the first verdict on a task stands"
        self._verdicts[number] = verdict
        if len(self._verdicts) > REMEMBERED_VERDICTS:
            del self._verdicts[min(self._verdicts)]


def validate(tasks: TaskHistory, base_version: int, update: UpdateArrived, *, finished: bool) -> tuple[Verdict, bool]:
    """Return the verdict on an update, and whether it repeats an earlier one. Stores the first verdict on a task.

    Stores nothing for an unknown task. After any verdict on the open task the caller must close it, because a client
    sends one update for a task and then waits.

    base_version: of the client's open task; ignored without one. finished: whether the run is over.
    """
    answers_open_task = update.task_id == tasks.open_id
    if answers_open_task:
        number = tasks.count - 1
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
