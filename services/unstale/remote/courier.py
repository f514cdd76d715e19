"""A process that speaks to a Ray cluster for another one.

    python -m unstale.remote.courier DESCRIPTOR_OF_PIPE

Ray ends the process that uses it when the cluster's head is gone, and takes over its signals; so it is not the process
of the run. It is told where the cluster is, says whether that can be used, and passes groups of inversions to Ray
tasks. It ends when the pipe does. It imports no PyTorch.
"""

import json
import queue
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
from unstale.net.clock import now_s
from unstale.remote.connection import connect, why
from unstale.remote.frames import Kind, Pipe, Start, hear, say

ATTEMPTS = 2  # whatever is wrong costs one: a worker or a machine that is broken is not the only one
TASK_S = 3600.0  # in which nothing comes back; a group of the preset `paper` may take that long on a CPU
PREPARE_S = 120.0  # a worker imports PyTorch and builds the model; on a cold disk that may take a minute
OTHERS_S = 20.0  # for all machines that are slower than the first, which may be busy with something else
POLL_S = 0.02  # how long an order may wait for Ray
LOOK_S = 5.0  # between two looks at whether there still is a machine that computes
LISTEN_S = 1.0  # between two looks at whether anybody still waits for the check

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
        self._looked_s = self._moved_s = now_s()
        connect(start.address, key="compensator.ray")
        machines = self._machines()
        if not machines:
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
            **({"runtime_env": KEEP_GPUS_VISIBLE} if start.gpus else {}),
        }
        self._check(machines, ray.remote(max_calls=0)(_prepare), options)
        self._invert = ray.remote(max_calls=0)(_invert).options(**options, scheduling_strategy="SPREAD")

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
        self._moved_s = now_s()
        try:
            reference = self._invert.remote(self._start.description, task.group)
        except RayError as error:  # no place is left for the group
            self._lose(task, why(error))
        else:
            self._tasks[reference] = task

    def _cancel(self, number: int) -> None:
        for reference, task in list(self._tasks.items()):
            if task.number == number:
                del self._tasks[reference]
                _end(reference)

    def _look(self) -> None:
        """Wait a little for what is under way."""
        ended, _ = ray.wait(list(self._tasks), num_returns=1, timeout=POLL_S)
        for reference in ended:
            self._moved_s = now_s()
            self._settle(reference, self._tasks.pop(reference))
        if now_s() - self._moved_s > TASK_S:
            self._begin_again()
        if now_s() - self._looked_s > LOOK_S:
            self._looked_s = now_s()
            if not self._machines():
                raise ConnectionError("no machine of the cluster is left that computes")

    def _settle(self, reference: Any, task: _Task) -> None:
        try:
            answer = ray.get(reference)
        except RayError as error:
            self._again(task, why(error))
        else:
            say(self._pipe, Kind.DONE, task.number, answer)

    def _begin_again(self) -> None:
        """Nothing moves: of what is under way, nobody knows what waits and what hangs."""
        stuck, self._tasks = self._tasks, {}
        for reference, task in stuck.items():
            _end(reference)
            self._again(task, f"nothing came of it in {TASK_S:g} s")

    def _again(self, task: _Task, why: str) -> None:
        if task.attempts < ATTEMPTS:
            self._submit(task)
        else:
            self._lose(task, f"{why}; it was tried {ATTEMPTS} times")

    def _lose(self, task: _Task, why: str) -> None:
        say(self._pipe, Kind.LOST, task.number, why.encode())

    def _machines(self) -> list[str]:
        """Those that could do a task, were they idle."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        is_client = self._start.address.startswith("ray://")
        if not is_client and ray.get_runtime_context().get_node_id() not in alive:
            return []  # nothing reaches the others without the machine that this process is on
        return [
            name
            for name, has in alive.items()
            if has.get("CPU", 0) >= self._start.cpus and has.get("GPU", 0) >= self._start.gpus
        ]

    def _check(self, machines: Sequence[str], prepare: Any, options: Mapping[str, Any]) -> None:
        """Raise UserError if a worker on one of the machines cannot do what it will be asked to, or none has begun in
        time. Raises EOFError when nobody waits for it any more."""
        where = f"compensator.ray is {self._start.address!r}, but"
        try:
            begun = [
                prepare.options(
                    **options, scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False)
                ).remote(self._start.description)
                for machine in machines
            ]
            ready = self._ready(begun)
            if not ready:
                raise UserError(
                    f"{where} no worker of that cluster is ready within {PREPARE_S:g} s, expected one that is idle; "
                    "look at `ray status` there"
                )
            ray.get(ready)
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise UserError(
                f"{where} a worker of that cluster cannot do what is asked ({why(error)}), expected one with the same "
                "unstale; install it on all machines"
            ) from None
        except RayError as error:
            raise UserError(
                f"{where} a first task there has failed ({why(error)}), expected one that ends; look at Ray's logs"
            ) from None

    def _ready(self, begun: Sequence[Any]) -> list[Any]:
        """Those that end in time."""
        ready: list[Any] = []
        waiting, until_s = list(begun), now_s() + PREPARE_S
        while waiting and now_s() < until_s:
            if self._pipe.poll():  # nothing is said before this is
                raise EOFError
            more, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LISTEN_S)
            if more and not ready:
                until_s = min(until_s, now_s() + OTHERS_S)
            ready += more
        return ready


def _end(reference: Any) -> None:
    """Of a task, with its worker: one that is interrupted while it imports PyTorch could never import it again."""
    ray.cancel(reference, force=True)


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
