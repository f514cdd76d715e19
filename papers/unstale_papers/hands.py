"""Processes that do jobs, from the side of the engine."""

import multiprocessing
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from unstale.errors import UserError
from unstale.settings.learning import DataSettings
from unstale_papers import worker
from unstale_papers.jobs import Job
from unstale_papers.worker import Pipe, hear, say

CLUSTER = "unstale_papers.cluster"  # named, not imported: it imports Ray
END_S = 10.0  # Ray ends a cluster of its own in one or two
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class EndedError(Exception):
    """The process is gone. The text says how, in words."""


class Hand:
    """A process that does jobs. It ends with this one, however this one ends; `close` ends it now, whatever it does.

    capacity: how many jobs at a time; 0 until it is ready. jobs: those under way, by digest. shares: of those, what is
    done, from 0 to 1. data: of the job last given. where: the cluster that does them; None for a process of this
    machine.
    """

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        where: str | None = None,
    ) -> None:
        """Raises OSError when there can be no such process."""
        self.capacity = 0
        self.data: DataSettings | None = None
        self.jobs: dict[str, Job] = {}
        self.shares: dict[str, float] = {}
        self.where = where
        self.pipe, theirs = multiprocessing.Pipe()
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            # -P: it takes no program from the folder that it is started in.
            [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **environment, "PYTHONPATH": paths},
            process_group=0,  # an interrupt from the keyboard is for us, and we end it
        )
        moment_s = 0.0 if where is None else END_S
        self.close = weakref.finalize(self, _end, self._process, self.pipe, moment_s)
        theirs.close()

    @property
    def is_free(self) -> bool:
        """Whether it can be given one more."""
        return len(self.jobs) < self.capacity

    def give(self, job: Job) -> None:
        """Have it do a job. That it is gone, `hear` says."""
        self.jobs[job.digest] = job
        self.data = job.settings.data
        with suppress(OSError):
            say(self.pipe, job.order)

    def hear(self) -> dict[str, Any]:
        """What it says next. Raises EndedError when it is gone."""
        try:
            words: dict[str, Any] = hear(self.pipe)
        except (EOFError, OSError):
            code = self._process.wait()
        else:
            return words
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        why = ", perhaps for want of memory" if code == -9 else ""
        raise EndedError(f"its process {how}{why}")

    def taken(self, digest: str) -> Job:
        """A job that is under way no more."""
        self.shares.pop(digest, None)
        return self.jobs.pop(digest)


def local(*modules: str) -> Hand:
    """A process of this machine that does one job at a time, with one thread. modules: what it imports before it is
    ready; others it imports when a job needs them. Raises OSError."""
    return Hand(worker.__name__, modules, ONE_THREAD)


def on_ray(address: str, gpus: float) -> Hand:
    """A process that has the machines of a Ray cluster do jobs. gpus: of each job.

    Raises UserError where Ray is not installed.
    """
    if find_spec("ray") is None:
        raise UserError(
            f"--ray is {address!r}, but Ray is not installed; install it with pip install 'unstale[ray]'"
        )
    from unstale.remote.cluster import LOOPBACK  # imports torch

    wanted = {"RAY_USAGE_STATS_ENABLED": "0", **(LOOPBACK if address == "local" else {})}
    own = {name: value for name, value in wanted.items() if name not in os.environ}
    return Hand(CLUSTER, (address, str(gpus)), own, where=address)


def _end(process: subprocess.Popen[bytes], pipe: Pipe, moment_s: float) -> None:
    pipe.close()
    if moment_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment_s)
    process.kill()  # a job has nothing that it would have to finish
    process.wait()
