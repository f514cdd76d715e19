"""Backends compute the tasks of simulated clients: the interface, and the backend `loop`, the reference for others."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from unstale.learner.versions import Version
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task of one client."""

    client_id: int
    number: int  # of the client's tasks, from 0
    base: Version  # read-only
    learning_rate: float  # eta_l, > 0
    evaluate: bool  # the client also evaluates the base on its own test examples
    version: int | None = None  # number of the base, for data that changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The result of a job. The backend keeps `local.state`; the caller owns the vectors of `local`."""

    local: LocalUpdate
    evaluation: Measured | None  # None unless requested, and for a client without test examples


class Backend(ABC):
    """Computes clients. A result depends on the job and on the state of its client only, not on other jobs."""

    at_a_time: int = 1  # best number of jobs for one call, or a multiple of it; 1 if it makes no difference

    @abstractmethod
    def compute(self, jobs: Sequence[Job]) -> list[Computed]:
        """The results of jobs, in order. No two jobs are of one client."""

    @abstractmethod
    def keep(self, client_id: int, number: int) -> None:
        """The update of this task was accepted: the client keeps the state that it made, as `Trainer.keep`."""

    @abstractmethod
    def drop(self, client_id: int, number: int) -> None:
        """The update of this task was not accepted, as `Trainer.drop`."""

    def close(self) -> None:  # noqa: B027  (most have none)
        """Release resources outside this process. A second call does nothing."""


class Loop(Backend):
    """Computes one client after the other, in this process."""

    at_a_time = 2  # consecutive draws are faster

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Computed]:
        return list(one_by_one(self._trainer, jobs))

    @override
    def keep(self, client_id: int, number: int) -> None:
        self._trainer.keep(client_id, number)

    @override
    def drop(self, client_id: int, number: int) -> None:
        self._trainer.drop(client_id, number)


def one_by_one(trainer: Trainer, jobs: Sequence[Job]) -> Iterator[Computed]:
    """The results of jobs, in order; each is computed when it is requested."""
    tasks = [
        trainer.task(
            *(job.client_id, job.number, job.base.model_d, job.learning_rate),
            buffers_b=job.base.buffers_b if job.base.buffers_b.numel() else None,
            extra_d=job.base.extra_d,
            version=job.version,
        )
        for job in jobs
    ]
    for job, task in zip(jobs, tasks, strict=True):
        evaluation = None
        if job.evaluate:
            evaluation = trainer.evaluate_own(job.client_id, task.base_d, task.buffers_b)
        local = trainer.compute(job.client_id, job.number, task)
        yield Computed(local=local, evaluation=evaluation)
