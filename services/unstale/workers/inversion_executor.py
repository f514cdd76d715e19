"""Submits inversions of stale updates from the process of a run to a Ray cluster."""

from unstale.config.compensation import ray_cluster
from unstale.config.settings import Settings
from unstale.training.datasets import Dataset
from unstale.workers.inversion_tasks import described as described_run
from unstale.workers.pool import RayStart
from unstale.workers.program import described as described_program
from unstale.workers.ray_executor import RayExecutor

ATTEMPTS = 2  # another worker or machine may succeed
TASK_S = 3600.0  # a CPU may take an hour for a group of the preset `paper-sign-adam`


def connect(settings: Settings, dataset: Dataset) -> RayExecutor:
    """Connect to the cluster of `ray_cluster`. Raises UserError if it cannot be used."""
    key, address = ray_cluster(settings)
    assert address is not None
    return RayExecutor(
        RayStart(
            address=address,
            key=key,
            program=described_program("unstale.workers.inversion_tasks:prepare", described_run(settings, dataset)),
            cpus=settings.threads,
            gpus=settings.compensator.ray_gpus,
            advice="lower threads or compensator.ray_gpus",
            attempts=ATTEMPTS,
            task_s=TASK_S,
            reuses_gpus=True,
        )
    )
