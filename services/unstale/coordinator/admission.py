"""Whether an update counts: the tasks that a client was given, what became of each, and the verdict.

A task id tells whose task it is and which: id = number * clients + client id + 1. So whether a task was ever
given to a client is known for good, without keeping a list of them.
"""

from dataclasses import dataclass

from unstale.coordinator.actions import Outcome, Reason
from unstale.coordinator.events import UpdateArrived

REMEMBERED_VERDICTS = 16
"""Kept for each client. It works on one task at a time, and repeats an update as soon as a later one is acknowledged
before it, so a repeat is of its last judged task or the one before, unless ack after ack is lost or the network holds
copies back. An older verdict is forgotten, and a copy of that update is rejected as expired: it still counts once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an update is told. reason: None exactly when it is accepted."""

    outcome: Outcome
    reason: str | None = None


ACCEPTED = Verdict(Outcome.ACCEPTED)
UNKNOWN_TASK = Verdict(Outcome.REJECTED, Reason.UNKNOWN_TASK)
EXPIRED_TASK = Verdict(Outcome.REJECTED, Reason.EXPIRED_TASK)
UNKNOWN_VERSION = Verdict(Outcome.REJECTED, Reason.UNKNOWN_VERSION)
RUN_FINISHED = Verdict(Outcome.REJECTED, Reason.RUN_FINISHED)


class TaskHistory:
    """The tasks of one client: how many it was given, the open one, and the verdicts on the last few.

    given: tasks so far; the next has this number. open_id: the open one, always the last given, or None.
    """

    __slots__ = ("_client_id", "_clients", "_verdicts", "given", "open_id")

    def __init__(self, client_id: int, clients: int) -> None:
        self._client_id = client_id
        self._clients = clients
        self._verdicts: dict[int, Verdict] | None = None  # by number; made with the first
        self.given = 0
        self.open_id: int | None = None

    def give(self) -> int:
        """Open the next task; its id."""
        assert self.open_id is None, f"client {self._client_id} already has task {self.open_id}"
        self.open_id = self.given * self._clients + self._client_id + 1
        self.given += 1
        return self.open_id

    def number_of(self, task_id: int) -> int | None:
        """Which of its tasks this is, counted from 0; None when the client was never given it."""
        number, owner = divmod(task_id - 1, self._clients)
        return number if owner == self._client_id and 0 <= number < self.given else None

    def verdict_on(self, number: int) -> Verdict | None:
        """The verdict on a task's update; None when none came, or so many ago that it is forgotten."""
        return None if self._verdicts is None else self._verdicts.get(number)

    @property
    def verdicts(self) -> list[tuple[int, Verdict]]:
        """Those that are remembered, by number, oldest first."""
        return sorted((self._verdicts or {}).items(), key=lambda one: one[0])

    def record(self, number: int, verdict: Verdict) -> None:
        """Remember the first verdict on a task, unless there are so many on later ones that it would be forgotten."""
        if self._verdicts is None:
            self._verdicts = {}
        assert number not in self._verdicts, "the first verdict on a task stands"
        self._verdicts[number] = verdict
        if len(self._verdicts) > REMEMBERED_VERDICTS:
            del self._verdicts[min(self._verdicts)]


def judge(
    tasks: TaskHistory, base_version: int, update: UpdateArrived, *, finished: bool
) -> tuple[Verdict, bool]:
    """The verdict on an update, and whether it repeats one that was judged before. The verdict is remembered.

    tasks, base_version: of the client that sent it. finished: whether the run is over.

    An update for a task that the client was never given concerns no task: nothing is remembered and nothing
    closes. Every other verdict is the task's last word. One for the open task closes it, whatever the
    verdict: a client sends one update for a task and then waits, so a task left open after a rejection would
    never be answered.
    """
    answers_open_task = update.task_id == tasks.open_id
    if answers_open_task:
        number = tasks.given - 1  # the last that was given, and without a verdict
    else:
        given = tasks.number_of(update.task_id)
        if given is None:
            return (RUN_FINISHED if finished else UNKNOWN_TASK), False
        first = tasks.verdict_on(given)
        if first is not None:
            return first, True
        number = given
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
