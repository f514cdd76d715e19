"""Machines of a Ray cluster that invert updates, from the side of the run."""

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from math import inf
from multiprocessing import Pipe

from safetensors.torch import load, save

from unstale.compensators.elsewhere import Elsewhere, Tensors
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale.remote import frames
from unstale.remote.frames import Kind, Start
from unstale.remote.worker import described
from unstale.training.datasets import Dataset

COURIER = "unstale.remote.courier"  # named, not imported: it imports Ray
END_S = 10.0  # Ray ends a cluster of its own in one or two


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


class Cluster(Elsewhere):
    """Groups of inversions, each a Ray task. A worker that is lost costs a second try, and then the group is lost.

    When the cluster is lost, so is all that is there. It is looked for again from the next group on, which nobody waits
    for: until it is found, groups are lost at once. `close` ends what is under way; so does the end of this process.
    """

    def __init__(self, start: Start) -> None:
        """Raises UserError when the cluster cannot be used."""
        self._start = start
        self._lost = f"the Ray cluster {start.address} is gone"
        self._number = 0
        self._open: set[int] = set()
        self._ended: dict[int, Tensors | str] = {}
        self._courier = _Courier(start)
        while not self._courier.is_ready:
            if not self._hear(inf):
                raise UserError(
                    self._courier.refusal
                    or f"compensator.ray is {start.address!r}, but what connects to it ended; see what it printed"
                )

    def submit(self, group: Tensors) -> int:
        self._number += 1
        if self._courier.has_ended:
            self._courier.close()
            self._courier = _Courier(self._start)
        while self._hear(0.0):
            pass
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

    def close(self) -> None:
        self._courier.close()

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
        elif kind is Kind.REFUSED:
            self._courier.refusal = content.decode()
        elif number in self._open:  # and was not cancelled
            self._open.discard(number)
            self._ended[number] = load(content) if kind is Kind.DONE else content.decode()
        return True

    def _lose(self) -> None:
        self._ended |= dict.fromkeys(self._open, self._lost)
        self._open.clear()


class _Courier:
    """The process that speaks to Ray, from this side. refusal: why it ended, where it said so."""

    def __init__(self, start: Start) -> None:
        self.is_ready = False
        self.has_ended = False
        self.refusal: str | None = None
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, "-m", COURIER, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={
                "RAY_USAGE_STATS_ENABLED": "0",  # else Ray tells its makers
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            process_group=0,  # an interrupt from the keyboard is for us, and we end it
        )
        self.close = weakref.finalize(self, _end, self._process, self._pipe)
        theirs.close()
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


def _end(process: subprocess.Popen[bytes], pipe: frames.Pipe) -> None:
    pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    process.kill()
    process.wait()
