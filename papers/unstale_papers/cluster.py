"""A process that has the machines of a Ray cluster do jobs.

    python -m unstale_papers.cluster DESCRIPTOR_OF_PIPE ADDRESS GPUS_OF_A_JOB

Ray ends the process that uses it when the cluster's head is gone, and takes over its signals; so it is not
the engine's. It says how many jobs the cluster does at a time, is given so many, and ends when the pipe does. It
imports no PyTorch.
"""

import json
import queue
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError

from unstale import __version__
from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale.remote.connection import connect, why
from unstale_papers.worker import Pipe, hear, say

PREPARE_S = 120.0  # in which a first worker has begun
POLL_S = 0.02  # how long an order may wait for Ray
LOOK_S = 5.0  # between two looks at how many machines there are


def _version() -> str:
    from unstale import __version__ as there  # on a worker

    import_module("unstale_papers.worker")  # raises where it is not installed
    return there


def _do(order: str) -> str:
    from unstale_papers.worker import answer  # on a worker

    return json.dumps(answer(json.loads(order), lambda _: None))


class Courier:
    """Has jobs done. pipe: where orders come from and answers go. gpus: of each job."""

    def __init__(self, pipe: Pipe, address: str, gpus: float) -> None:
        """Connect. Raises UserError when the cluster cannot be used."""
        self._pipe = pipe
        self._gpus = gpus
        self._tasks: dict[Any, str] = {}
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._capacity = 0
        self._looked_s = now_s()
        connect(address, key="--ray")
        if not self._room():
            what = "GPU" if gpus else "CPU"
            raise UserError(
                f"--ray is {address!r}, but no machine of that cluster has a {what}, expected one; add it, or set "
                "--device to what it has"
            )
        self._check(address)
        # Lost jobs are counted by the engine. A process that has used a GPU would stay with it: it ends with its job.
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0}
        self._do = ray.remote(max_calls=1 if gpus else 0)(_do).options(
            **options, scheduling_strategy="SPREAD"
        )

    def run(self) -> None:
        """Until nobody gives orders any more. Raises RayError or OSError when the cluster is lost."""
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        while True:
            self._look()
            try:
                order = self._orders.get(block=not self._tasks)
            except queue.Empty:
                self._settle()
                continue
            if order is None:
                return
            self._tasks[self._do.remote(json.dumps(order))] = order["digest"]

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._orders.put(hear(self._pipe))
        self._orders.put(None)

    def _look(self) -> None:
        """Say how many jobs there is room for, when that is new."""
        if self._capacity and now_s() - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s()
        room = self._room()
        if not room:
            raise ConnectionError("no machine of the cluster is left that computes")
        if room != self._capacity:
            self._capacity = room
            say(self._pipe, {"ready": room})

    def _room(self) -> int:
        """How many jobs the machines do at a time."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(
            int(min(has.get("CPU", 0), has.get("GPU", 0) / self._gpus if self._gpus else has.get("CPU", 0)))
            for has in alive
        )

    def _settle(self) -> None:
        """Wait a little for what is under way."""
        ended, _ = ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
        for reference in ended:
            digest = self._tasks.pop(reference)
            try:
                words = json.loads(ray.get(reference))
            except RayError as error:
                words = {"digest": digest, "lost": why(error)}
            say(self._pipe, words)

    def _check(self, address: str) -> None:
        """Raise UserError if a worker cannot do what it will be asked to."""
        try:
            there = ray.get(
                ray.remote(_version).options(num_cpus=1, max_retries=0).remote(), timeout=PREPARE_S
            )
        except RayError as error:
            raise UserError(
                f"--ray is {address!r}, but a first task there has failed ({why(error)}), expected a worker with the "
                "same unstale and unstale-papers; install them on all machines"
            ) from None
        if there != __version__:
            raise UserError(
                f"a worker of the Ray cluster has unstale {there}, expected {__version__}, as here; install the same "
                "on all machines"
            )


def main(descriptor: int, address: str, gpus: float) -> None:
    pipe: Pipe = Connection(descriptor)
    try:
        Courier(pipe, address, gpus).run()
    except UserError as error:
        with suppress(OSError):
            say(pipe, {"refused": str(error)})
    except (EOFError, OSError, RayError):
        return  # whoever started this process is gone, or the cluster is: both see it by the end of the pipe
    finally:
        pipe.close()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
