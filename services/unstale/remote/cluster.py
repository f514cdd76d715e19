"""Machines of a Ray cluster that invert updates, from the side of the run."""

import json
import os
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.util import find_spec
from math import inf
from multiprocessing.connection import Connection

from safetensors.torch import load, save

from unstale.compensators.executor import Executor, Tensors
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale.remote import frames
from unstale.remote.frames import Kind, Start
from unstale.remote.worker import described
from unstale.training.datasets import Dataset

COURIER = "unstale.remote.courier"  # named, not imported: it imports Ray
END_S = 10.0  # Ray ends a cluster of its own in one or two
PIPE_S = 10  # in which nothing more of a frame goes through: then the other side hangs
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then listens on 127.0.0.1 alone, on any system


def connect(settings: Settings, dataset: Dataset) -> "Cluster":
    """Connect to the cluster of `compensator.ray`. Raises UserError when it cannot be used."""
    address = settings.compensator.ray
    assert address is not None
    if find_spec("ray") is None:
        raise UserError(
            f"compensator.ray is {address!r}, but Ray is not installed; install it with pip install 'unstale[ray]'"
        )
    return Cluster(
        Start(
            address=address,
            description=described(settings, dataset),
            cpus=settings.threads,
            gpus=settings.compensator.ray_gpus,
        )
    )


class Cluster(Executor):
    """Groups of inversions, each a Ray task. What goes wrong with it costs a second try, and then the group is lost.

    When the cluster is lost, so is all that is there. It is looked for again from the next group on, which nobody waits
    for: until it is found, groups are lost at once. `close` ends what is under way; so does the end of this process.
    """

    def __init__(self, start: Start) -> None:
        """Raises UserError when the cluster cannot be used."""
        self._start = start
        self._why_lost = (
            f"compensator.ray is {start.address!r}, but what connects to it ended; see what it printed"
        )
        self._number = 0
        self._open: set[int] = set()
        self._ended: dict[int, Tensors | str] = {}
        self._has_stopped = False
        try:
            self._courier = _Courier(start)
        except OSError as error:
            raise UserError(self._not_started(error)) from None
        while not self._courier.is_ready:
            if not self._hear(inf):
                raise UserError(self._why_lost)

    def submit(self, group: Tensors) -> int:
        self._number += 1
        while self._hear(0.0):
            pass
        if self._courier.has_ended and not self._has_stopped:
            self._connect_again()
        self._open.add(self._number)
        if not self._courier.is_ready or not self._courier.say(Kind.INVERT, self._number, save(group)):
            self._lose()
        return self._number

    def wait(self, numbers: Collection[int], longest_s: float | None) -> dict[int, Tensors | str]:
        until_s = inf if longest_s is None else now_s() + longest_s
        while self._open.intersection(numbers) and self._hear(max(until_s - now_s(), 0.0)):
            pass
        return {number: self._ended.pop(number) for number in numbers if number in self._ended}

    def cancel(self, number: int) -> None:
        self._ended.pop(number, None)
        if number in self._open:
            self._open.discard(number)
            self._courier.say(Kind.CANCEL, number)

    def stop(self) -> None:
        self._has_stopped = True
        self._courier.hang_up()

    def close(self) -> None:
        """Wait until nothing of it runs any more."""
        self._courier.close()

    def _connect_again(self) -> None:
        self._courier.kill()
        try:
            self._courier = _Courier(self._start)
        except OSError as error:  # the next group tries it again
            self._why_lost = self._not_started(error)

    def _not_started(self, error: OSError) -> str:
        return (
            f"compensator.ray is {self._start.address!r}, but the process that connects to it does not start "
            f"({error.strerror}), expected room for one more; end others, or raise the limit"
        )

    def _hear(self, longest_s: float) -> bool:
        """Take in what the courier says next, if it says it in time; whether it did."""
        heard = self._courier.hear(longest_s)
        if heard is None:
            if self._courier.has_ended:
                self._lose()
            return False
        kind, number, content = heard
        if kind is Kind.READY:
            self._courier.is_ready = True
            self._why_lost = f"the Ray cluster {self._start.address} is gone"
        elif kind is Kind.REFUSED:
            self._why_lost = content.decode()
        elif number in self._open:  # and was not cancelled
            self._open.discard(number)
            self._ended[number] = load(content) if kind is Kind.DONE else content.decode()
        return True

    def _lose(self) -> None:
        why = "the run was stopped" if self._has_stopped else self._why_lost
        self._ended |= dict.fromkeys(self._open, why)
        self._open.clear()


class _Courier:
    """The process that speaks to Ray, from this side."""

    def __init__(self, start: Start) -> None:
        """Raises OSError when there can be no such process."""
        self.is_ready = False
        self.has_ended = False
        ours, theirs = socket.socketpair()
        with ExitStack() as stack, theirs:
            self._socket = stack.enter_context(ours)
            for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", PIPE_S, 0))
            self._pipe: frames.Pipe = stack.enter_context(Connection(os.dup(ours.fileno())))
            self._process = _begun(start, theirs.fileno())
            self.close = weakref.finalize(self, _end, self._process, stack.pop_all())
        self.say(Kind.START, 0, json.dumps(asdict(start)).encode())

    def say(self, kind: Kind, number: int, content: bytes = b"") -> bool:
        """Whether it can still be said."""
        try:
            frames.say(self._pipe, kind, number, content)
        except OSError:
            self.has_ended = True
        return not self.has_ended

    def hear(self, longest_s: float) -> tuple[Kind, int, bytes] | None:
        """The next frame; None when there is none in time, or it has ended."""
        try:
            if self._pipe.poll(None if longest_s == inf else longest_s):
                return frames.hear(self._pipe)
        except (EOFError, OSError):
            self.has_ended = True
        return None

    def hang_up(self) -> None:
        """Both sides hear that the other one has ended. Any thread."""
        with suppress(OSError):  # it has
            self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Have it end without waiting for anything."""
        self._process.kill()
        self.close()


def _begun(start: Start, descriptor: int) -> subprocess.Popen[bytes]:
    """The process of a courier. descriptor: of its side of the pipe."""
    return subprocess.Popen(  # noqa: S603  (our own program)
        # -P: it takes no program from the folder of the run.
        [sys.executable, "-P", "-m", COURIER, str(descriptor)],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={
            "RAY_USAGE_STATS_ENABLED": "0",  # else Ray tells its makers
            **(LOOPBACK if start.address == "local" else {}),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        process_group=0,  # an interrupt from the keyboard is for us, and we end it
    )


def _end(process: subprocess.Popen[bytes], pipe: ExitStack) -> None:
    pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    process.kill()
    process.wait()
