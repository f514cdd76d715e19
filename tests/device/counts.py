"""Counts what one part of a run asks of the simulated device, step by step."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from support.simulated_device import CPU, CUDA, DeviceTensor, Event, SimulatedDevice, simulated_device

Step = Callable[[], AbstractContextManager[object]]
"""A block of code that is one step; all else is preparation, and not counted."""

Part = Callable[[torch.device, Step], Iterable[Tensor]]
"""Runs the steps of one part of a run on a device, and gives results to compare with those of the CPU."""


class Counts(NamedTuple):
    """The most in one step of a part."""

    waits: int  # for the device, copies to the host included
    to_host: int  # copies to the host
    uploads: int  # copies to the device for which the host waits


NAMES = Counts("synchronisations", "copies to the host", "blocking copies to the device")  # type: ignore[arg-type]


@dataclass
class Measured:
    """The events of each step, by kind as in `Counts`."""

    results: list[Tensor] = field(default_factory=list)
    steps: list[tuple[list[Event], ...]] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        return Counts(*map(len, self.worst))

    @property
    def worst(self) -> tuple[list[Event], ...]:
        """The events of the step with the most of them, for each kind."""
        return tuple(max(of_steps, key=len) for of_steps in zip(*self.steps, strict=True))


def on_cpu(part: Part) -> list[Tensor]:
    return [result.clone() for result in part(CPU, nullcontext)]


def on_device(part: Part) -> Measured:
    """Run a part on the simulated device. The results are on the host."""
    measured = Measured()
    with simulated_device() as device:

        @contextmanager
        def step() -> Iterator[None]:
            device.clear()
            yield
            measured.steps.append(_events(device))

        for result in part(CUDA, step):
            measured.results.append((result.host if isinstance(result, DeviceTensor) else result).clone())
    return measured


def on_gpu(part: Part) -> int:
    """Run a part on a CUDA device; the most waits in a step that PyTorch reports, copies to the device included."""
    waits = []

    @contextmanager
    def step() -> Iterator[None]:
        with warnings.catch_warnings(action="ignore"):  # PyTorch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True, action="always") as caught:
                yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchronizing" in str(warning.message) for warning in caught))

    for result in part(CUDA, step):
        assert result.device == CUDA
    return max(waits)


def _events(device: SimulatedDevice) -> tuple[list[Event], ...]:
    waits = device.synchronisations
    return list(waits), [wait for wait in waits if wait.numbers], list(device.uploads)


def surplus(name: str, measured: Measured, allowed: Counts) -> list[str]:
    """A sentence for each count above the allowed one."""
    return [
        f"{name}: {len(events)} {kind} in a step, expected {most}; the first one too many is {events[most]}; all of "
        f"the step: {', '.join(map(str, events))}"
        for kind, events, most in zip(NAMES, measured.worst, allowed, strict=True)
        if len(events) > most
    ]
