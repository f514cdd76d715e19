"""A process that connects to a Ray cluster and submits the tasks of its parent to it.

    python -m unstale.workers.ray_driver SOCKET

SOCKET is the file descriptor of a socket to the parent; the first frame is a `RayStart`. Ray replaces the signal
handlers of a process that connects, and kills the process when the cluster loses its head node. Therefore the parent
does not connect itself. This process ends when the parent closes the socket, and imports no PyTorch.
"""

import json
import logging
import queue
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unstale.errors import UserError
from unstale.workers.channel import Frame, Kind, Pipe, receive, send
from unstale.workers.pool import RayStart
from unstale_client.net.clock import now_s

CONNECT_S = 5.0  # Ray's own limit is two minutes
STORE_BYTES = 256 * 2**20  # object store of a `local` cluster; Ray writes further objects to disk
PREPARE_S = 120.0  # limit for the first worker, which imports PyTorch and builds a model: a minute on a cold disk
OTHERS_S = 20.0  # limit for the other workers after the first; their machines may be busy
POLL_S = 0.02  # limit of `ray.wait`, which delays the requests of the parent
MACHINES_S = 5.0  # interval of the checks of the list of machines
PARENT_S = 1.0  # interval of the checks of the connection to the parent during `_check_machines`

KEEP_GPUS_VISIBLE = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
"""Runtime environment in which Ray does not set CUDA_VISIBLE_DEVICES; see `RayStart.reuses_gpus`."""


@dataclass(slots=True, kw_only=True)
class Task:
    """A submitted task."""

    number: int
    content: bytes  # input of the program
    attempts: int = 0  # submissions so far


def _prepare(program: str) -> None:
    from unstale.workers.program import loaded  # on the worker only: it imports PyTorch

    loaded(program)


def _compute(program: str, content: bytes) -> bytes:
    from unstale.workers.program import loaded  # on the worker only

    return loaded(program)(content, lambda _: None)


class Driver:
    """Runs the tasks that arrive on `pipe`, the connection to the parent, on a Ray cluster."""

    def __init__(self, start: RayStart, pipe: Pipe) -> None:
        """Connect. Raises UserError if the cluster cannot compute the tasks, and EOFError if the parent has ended."""
        self._start = start
        self._pipe = pipe
        self._prefix = f"{start.key} is {start.address!r}, but"
        self._tasks: dict[Any, Task] = {}
        self._requests: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._checked_s = self._result_s = now_s()
        connect(start.address, key=start.key)
        capacities = self._capacities()
        if not capacities:
            cpus = "1 CPU" if start.cpus == 1 else f"{start.cpus} CPUs"
            share = f" and {start.gpus:g} of a GPU" if start.gpus else ""
            raise UserError(
                f"{self._prefix} no machine of that cluster has the resources of a task ({cpus}{share}), expected at "
                f"least one; {start.advice}"
            )
        # The driver counts attempts: Ray would retry without end on a machine with too little memory.
        options: dict[str, Any] = {"num_cpus": start.cpus, "num_gpus": start.gpus, "max_retries": 0}
        if start.gpus and start.reuses_gpus:
            options["runtime_env"] = KEEP_GPUS_VISIBLE
        # A worker process cannot change its GPU. So it ends after one task, unless the program selects the device
        # itself (`reuses_gpus`). 0: no limit.
        max_calls = int(bool(start.gpus) and not start.reuses_gpus)
        self._check_machines(list(capacities), ray.remote(max_calls=max_calls)(_prepare), options)
        self._compute = ray.remote(max_calls=max_calls)(_compute).options(**options, scheduling_strategy="SPREAD")
        self._send_capacity(sum(capacities.values()))

    def run(self) -> None:
        """Serve requests until the parent ends. Raises RayError or OSError if the cluster is lost."""
        threading.Thread(target=self._listen, name="requests", daemon=True).start()
        while True:
            try:
                request = self._requests.get(block=not self._tasks)
            except queue.Empty:
                self.poll()
                continue
            if request is None:
                return
            kind, number, content = request
            if kind is Kind.CANCEL:
                self.cancel(number)
            else:
                self.submit(Task(number=number, content=content))

    def submit(self, task: Task) -> None:
        task.attempts += 1
        self._result_s = now_s()
        try:
            reference = self._compute.remote(self._start.program, task.content)
        except RayError as error:  # the object store is full
            send(self._pipe, Kind.LOST, task.number, cause(error).encode())
        else:
            self._tasks[reference] = task

    def cancel(self, number: int) -> None:
        for reference, task in list(self._tasks.items()):
            if task.number == number:
                del self._tasks[reference]
                _kill(reference)

    def poll(self) -> None:
        """Wait POLL_S for a result; check for hanging tasks, and every MACHINES_S the machines."""
        ended, _ = ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
        for reference in ended:
            self._result_s = now_s()
            self._finish(reference, self._tasks.pop(reference))
        if self._start.task_s is not None and now_s() - self._result_s > self._start.task_s:
            self._restart_all(self._start.task_s)
        if now_s() - self._checked_s > MACHINES_S:
            self._checked_s = now_s()
            capacity = sum(self._capacities().values())
            if not capacity:
                raise ConnectionError("no machine of the cluster is left for the tasks")
            if capacity != self._capacity:
                self._send_capacity(capacity)

    def _listen(self) -> None:
        # In a thread: two sides that send long frames and do not read would block each other.
        with suppress(EOFError, OSError):
            while True:
                self._requests.put(receive(self._pipe))
        self._requests.put(None)

    def _send_capacity(self, capacity: int) -> None:
        self._capacity = capacity
        send(self._pipe, Kind.READY, capacity)

    def _finish(self, reference: Any, task: Task) -> None:
        try:
            result = ray.get(reference)
        except RayError as error:
            self._retry(task, cause(error))
        else:
            send(self._pipe, Kind.DONE, task.number, result)

    def _restart_all(self, task_s: float) -> None:
        """Cancel and resubmit all tasks after `task_s` seconds without a result: one of them may hang."""
        tasks, self._tasks = self._tasks, {}
        for reference, task in tasks.items():
            _kill(reference)
            self._retry(task, f"there was no result in {task_s:g} s")

    def _retry(self, task: Task, reason: str) -> None:
        if task.attempts < self._start.attempts:
            self.submit(task)
            return
        if task.attempts > 1:
            reason += f"; it was tried {task.attempts} times"
        send(self._pipe, Kind.LOST, task.number, reason.encode())

    def _capacities(self) -> dict[str, int]:
        """Return how many tasks the resources of each machine suffice for, by node id, without zeros."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        is_client = self._start.address.startswith("ray://")
        if not is_client and ray.get_runtime_context().get_node_id() not in alive:
            return {}  # a driver reaches the other nodes through its own
        capacities = {name: self._capacity_of(resources) for name, resources in alive.items()}
        return {name: capacity for name, capacity in capacities.items() if capacity}

    def _capacity_of(self, resources: Mapping[str, float]) -> int:
        start = self._start
        needs = [("CPU", start.cpus)] + [("GPU", start.gpus)] * bool(start.gpus)
        return min(int(resources.get(name, 0) / count) for name, count in needs)

    def _check_machines(self, machines: Sequence[str], prepare: Any, options: Mapping[str, Any]) -> None:
        """Run `prepare` on each machine.

        Raises UserError if it fails on a machine or ends on none in time, and EOFError if the parent has ended.
        """
        try:
            references = [
                prepare.options(
                    **options, scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False)
                ).remote(self._start.program)
                for machine in machines
            ]
            ready = self._finished_in_time(references)
            if not ready:
                raise UserError(
                    f"{self._prefix} no worker of that cluster is ready within {PREPARE_S:g} s, expected one that is "
                    "idle; look at `ray status` there"
                )
            ray.get(ready)
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise UserError(
                f"{self._prefix} a worker of that cluster cannot load its program ({cause(error)}), expected one "
                "with the same unstale; install it on all machines"
            ) from None
        except RayError as error:
            raise UserError(
                f"{self._prefix} the first task on a machine has failed ({cause(error)}), expected success; look at "
                "Ray's logs"
            ) from None

    def _finished_in_time(self, references: Sequence[Any]) -> list[Any]:
        """Return the tasks that finish in PREPARE_S, or in OTHERS_S after the first."""
        finished: list[Any] = []
        waiting, deadline_s = list(references), now_s() + PREPARE_S
        while waiting and now_s() < deadline_s:
            if self._pipe.poll():  # the parent has closed the socket: it sends nothing before READY
                raise EOFError
            more, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=PARENT_S)
            if more and not finished:
                deadline_s = min(deadline_s, now_s() + OTHERS_S)
            finished += more
        return finished


def _kill(reference: Any) -> None:
    """Cancel a task and kill its worker, which after an interrupted import of PyTorch could not import it again."""
    ray.cancel(reference, force=True)


def connect(address: str, *, key: str) -> None:
    """Connect this process. key: setting of the address. Raises UserError if no cluster answers."""
    options: dict[str, Any] = {"address": address}
    if address == "local":
        options |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    elif address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{key} is {address!r}, but nothing answers there ({error}), expected the head of a Ray cluster; start "
                "one with `ray start --head`, or use local"
            ) from None
    try:
        ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # noqa: BLE001  (Ray also raises plain exceptions)
        raise UserError(
            f"{key} is {address!r}, but Ray cannot connect ({_first_sentence(error)}), expected a running cluster; "
            "start one with `ray start --head`, or use local"
        ) from None


def cause(error: RayError) -> str:
    """Return the cause of a failed task, one line."""
    if not isinstance(error, RayTaskError):
        return _first_sentence(error) or type(error).__name__
    if isinstance(error.cause, UserError):
        return str(error.cause)
    return f"{type(error.cause).__name__}: {_first_sentence(error.cause)}"


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def main(descriptor: int) -> None:
    pipe: Pipe = Connection(descriptor)
    try:
        _, _, content = receive(pipe)
        start = RayStart(**json.loads(content))
        if start.pause_s and pipe.poll(start.pause_s):
            raise EOFError  # the parent has closed the socket: it sends nothing before READY
        Driver(start, pipe).run()
    except UserError as error:
        with suppress(OSError):
            send(pipe, Kind.REFUSED, content=str(error).encode())
    except (EOFError, OSError, RayError):
        return  # the parent has ended, or the cluster is lost, which the parent sees by the closed socket
    finally:
        pipe.close()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
