"""A process that speaks to a Ray cluster for another one.

    python -m unstale.remote.courier DESCRIPTOR_OF_PIPE

Ray ends the process that uses it when the cluster's head is gone, and takes over its signals; so it is not the process
of the run. It is told where the cluster is, says whether that can be used, and passes groups of inversions to Ray
tasks. It ends when the pipe does. It imports no PyTorch.
"""

import json
import logging
import queue
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale.remote.frames import Kind, Pipe, Start, hear, say

ATTEMPTS = 2  # a worker that is lost costs one
CONNECT_S = 5.0  # Ray itself would try for two minutes
PREPARE_S = 120.0  # a worker imports PyTorch and builds the model; on a cold disk that may take a minute
POLL_S = 0.02  # how long an order may wait for Ray
LOOK_S = 5.0  # between two looks at whether there still is a machine that computes
STORE_BYTES = 256 * 2**20  # object memory of a cluster that is started here; what is over goes to disk

KEEP_GPUS_VISIBLE = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}  # why: `worker._gpu`

Order = tuple[Kind, int, bytes]


@dataclass(slots=True, kw_only=True)
class _Task:
    """A group on its way. attempts: so far."""

    number: int
    group: bytes
    attempts: int = 0


def _prepare(description: str) -> None:
    from unstale.remote.worker import prepare  # on the worker: it imports PyTorch

    prepare(description)


def _invert(description: str, group: bytes) -> bytes:
    from unstale.remote.worker import invert  # on the worker

    return invert(description, group)


class Courier:
    """Has groups computed. pipe: where orders come from and answers go."""

    def __init__(self, start: Start, pipe: Pipe) -> None:
        """Connect to the cluster. Raises UserError when it cannot be used."""
        self._start = start
        self._pipe = pipe
        self._tasks: dict[Any, _Task] = {}
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._looked_s = now_s()
        _connect(start.address)
        if not self._has_room():
            cpus = "1 CPU" if start.cpus == 1 else f"{start.cpus} CPUs"
            share = f" and {start.gpus:g} of a GPU" if start.gpus else ""
            raise UserError(
                f"compensator.ray is {start.address!r}, but no machine of that cluster has what a task takes "
                f"({cpus}{share}), expected at least one; lower threads or compensator.ray_gpus"
            )
        # Retries are counted here: Ray would try for ever where a machine's memory is too small.
        options: dict[str, Any] = {
            "num_cpus": start.cpus,
            "num_gpus": start.gpus,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
            **({"runtime_env": KEEP_GPUS_VISIBLE} if start.gpus else {}),
        }
        self._check_worker(ray.remote(max_calls=0)(_prepare).options(**options))
        self._invert = ray.remote(max_calls=0)(_invert).options(**options)

    def run(self) -> None:
        """Until nobody gives orders any more. Raises RayError or OSError when the cluster is lost."""
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        while True:
            try:
                order = self._orders.get(block=not self._tasks)
            except queue.Empty:
                self._look()
                continue
            if order is None:
                return
            kind, number, content = order
            if kind is Kind.CANCEL:
                self._cancel(number)
            else:
                self._submit(_Task(number=number, group=content))

    def _listen(self) -> None:
        # By itself: while both sides say something long, one of them has to listen.
        with suppress(EOFError, OSError):
            while True:
                self._orders.put(hear(self._pipe))
        self._orders.put(None)

    def _submit(self, task: _Task) -> None:
        task.attempts += 1
        self._tasks[self._invert.remote(self._start.description, task.group)] = task

    def _cancel(self, number: int) -> None:
        for reference, task in list(self._tasks.items()):
            if task.number == number:
                del self._tasks[reference]
                ray.cancel(reference)

    def _look(self) -> None:
        """Wait a little for what is under way."""
        ended, _ = ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
        for reference in ended:
            self._settle(reference, self._tasks.pop(reference))
        if now_s() - self._looked_s > LOOK_S:
            self._looked_s = now_s()
            if not self._has_room():
                raise ConnectionError("no machine of the cluster is left that computes")

    def _settle(self, reference: Any, task: _Task) -> None:
        try:
            answer = ray.get(reference)
        except TaskCancelledError:
            return
        except RayTaskError as error:
            say(self._pipe, Kind.LOST, task.number, _why(error).encode())
        except RayError:
            if task.attempts < ATTEMPTS:
                self._submit(task)
            else:
                say(self._pipe, Kind.LOST, task.number, b"one worker after the other died of it")
        else:
            say(self._pipe, Kind.DONE, task.number, answer)

    def _has_room(self) -> bool:
        """Whether there is a machine that could do a task, were it idle."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        is_client = self._start.address.startswith("ray://")
        if not is_client and ray.get_runtime_context().get_node_id() not in alive:
            return False  # nothing reaches the others without the machine that this process is on
        return any(
            has.get("CPU", 0) >= self._start.cpus and has.get("GPU", 0) >= self._start.gpus
            for has in alive.values()
        )

    def _check_worker(self, prepare: Any) -> None:
        """Raise UserError if a worker cannot do what it will be asked to."""
        begun = prepare.remote(self._start.description)
        ready, _ = ray.wait([begun], timeout=PREPARE_S)
        where = f"compensator.ray is {self._start.address!r}, but"
        if not ready:
            raise UserError(
                f"{where} no worker of that cluster is ready within {PREPARE_S:g} s, expected one that is idle; look "
                "at `ray status` there"
            )
        try:
            ray.get(begun)
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise UserError(
                f"{where} a worker of that cluster cannot do what is asked ({_why(error)}), expected one with the same "
                "unstale; install it on all machines"
            ) from None
        except RayError as error:
            raise UserError(f"{where} a worker of that cluster ends at once: {_begins(error)}") from None


def _connect(address: str) -> None:
    """Raises UserError when there is no cluster."""
    options: dict[str, Any] = {"address": address}
    if address == "local":
        options |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    elif address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"compensator.ray is {address!r}, but nothing answers there ({error}), expected the head of a Ray "
                "cluster; start one with `ray start --head`, or use local"
            ) from None
    try:
        ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **options)
    except (OSError, ValueError, ImportError, RuntimeError, RayError) as error:
        raise UserError(
            f"compensator.ray is {address!r}, but Ray cannot connect ({_begins(error)}), expected a cluster that "
            "runs; start one with `ray start --head`, or use local"
        ) from None


def _why(error: RayTaskError) -> str:
    return f"{type(error.cause).__name__}: {_begins(error.cause)}"


def _begins(error: Exception) -> str:
    """The first sentence of what it says."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def main(descriptor: int) -> None:
    pipe: Pipe = Connection(descriptor)
    try:
        _, _, content = hear(pipe)
        courier = Courier(Start(**json.loads(content)), pipe)
        say(pipe, Kind.READY)
        courier.run()
    except UserError as error:
        with suppress(OSError):
            say(pipe, Kind.REFUSED, content=str(error).encode())
    except (EOFError, OSError, RayError):
        return  # whoever started this process is gone, or the cluster is: both see it by the end of the pipe
    finally:
        pipe.close()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
