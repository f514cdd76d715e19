"""Worker pools that compute jobs: processes of this machine, or a Ray cluster."""

from unstale.version import __version__
from unstale.workers import pool
from unstale.workers.pool import Pool, RayStart
from unstale.workers.program import described

FACTORY = "unstale_papers.worker:begin"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def local(*modules: str) -> Pool:
    """A process of this machine with one thread. modules: imported before it is ready. Raises OSError."""
    return pool.local(FACTORY, _settings(modules), environment=ONE_THREAD)


def on_ray(address: str, gpus: float) -> Pool:
    """The machines of a Ray cluster. gpus: of each job. Raises OSError, and UserError where Ray is not installed."""
    return pool.on_ray(
        RayStart(
            address=address,
            key="--ray",
            program=described(FACTORY, _settings(())),
            cpus=1,
            gpus=gpus,
            advice="add one, or set --device to what it has",
        )
    )


def _settings(modules: tuple[str, ...]) -> dict[str, object]:
    return {"version": __version__, "modules": modules}
