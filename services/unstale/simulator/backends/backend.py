"""Backends compute the tasks of simulated clients: the interface, and the backend `loop`, the reference for others."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from unstale.learner.versions import Version
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import ClientTask, NotTrained, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task of one client."""

    client_id: int
    number: int  # of the client's tasks, from 0
    base: Version  # read-only
    learning_rate: float  # eta_l, > 0
    evaluate: bool  # the client also evaluates the base on its own test examples
    version: int = 0  # number of the base
    settings: Mapping[str, float | int | str] = field(default_factory=dict)  # that the server sends to clients

    @property
    def task(self) -> ClientTask:
        """The task without its evaluation."""
        base = self.base
        return ClientTask(
            client_id=self.client_id,
            number=self.number,
            version=self.version,
            base_d=base.model_d,
            learning_rate=self.learning_rate,
            buffers_b=base.buffers_b if base.buffers_b.numel() else None,
            extra_d=base.extra_d,
            settings=self.settings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The result of a job. The backend keeps `local.state`; the caller owns the vectors of `local`."""

    local: LocalUpdate
    evaluation: Measured | None  # None unless requested, and for a client without test examples


Result = Computed | NotTrained
"""NotTrained: the client gives its task back."""


class Backend(ABC):
    """Computes clients. A result depends on the job and on the state of its client only, not on other jobs."""

    at_a_time: int = 1  # best number of jobs for one call, or a multiple of it; 1 if it makes no difference

    @abstractmethod
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        """The results of jobs, in order. No two jobs are of one client."""

    @abstractmethod
    def keep(self, client_id: int, number: int) -> None:
        """The update of this task was accepted: the client keeps the state that it made, as `Workload.keep`."""

    @abstractmethod
    def drop(self, client_id: int, number: int) -> None:
        """The update of this task was not accepted, as `Workload.drop`."""

    def close(self) -> None:  # noqa: B027  (most have none)
        """Release resources outside this process. A second call does nothing."""


class Loop(Backend):
    """Computes one client after the other, in this process."""

    at_a_time = 2  # consecutive draws are faster

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        return list(one_by_one(self._workload, jobs))

    @override
    def keep(self, client_id: int, number: int) -> None:
        self._workload.keep(client_id, number)

    @override
    def drop(self, client_id: int, number: int) -> None:
        self._workload.drop(client_id, number)


def one_by_one(workload: Workload, jobs: Sequence[Job]) -> Iterator[Result]:
    """The results of jobs, in order; each is computed when it is requested."""
    tasks = [job.task for job in jobs]
    outcomes = workload.train_each(tasks)
    for job, task in zip(jobs, tasks, strict=True):
        evaluation = workload.evaluate(task.client_id, task.base_d, task.buffers_b) if job.evaluate else None
        outcome = next(outcomes)
        yield outcome if isinstance(outcome, NotTrained) else Computed(local=outcome, evaluation=evaluation)
