"""Backend `loop`: one client after the other, in this process; the reference for the other backends."""

from collections.abc import Iterator, Sequence

from typing_extensions import override

from unstale.simulator.backends.backend import Backend, Computed, Job
from unstale.training.trainer import Trainer


class Loop(Backend):
    """Computes in this process. Several jobs in one call are faster, because consecutive draws are."""

    at_a_time = 2

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
