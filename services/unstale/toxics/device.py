"""Compute time of tasks on clients.

Source: docs/methods/heterogeneity.md#durations-of-tasks
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Self

from pydantic import Field, model_validator

from unstale.seeds import Stream, stream
from unstale.settings.values import Section
from unstale.toxics.delay import Delay, Trace


class Device(Section):
    """Settings of a device.

        seconds = factor * exp(spread * z_i) * (task + step_s * steps) * U(jitter)

    z_i: a standard normal draw, once for each client i. task, U: drawn for each task, task first. steps: local steps
    of the task.
    """

    task: Delay | None = Field(None, description="Time of a task, independent of its local steps.")
    step_s: float = Field(0.0, ge=0, description="Time of a local step.")
    spread: float = Field(0.0, ge=0, le=10, description="Sigma of the constant lognormal factor of a client.")
    jitter: tuple[float, float] | None = Field(
        None, description="Range of a factor that is drawn uniformly for each task."
    )
    factor: float = Field(1.0, gt=0, le=1e6, description="Multiplies the time: 2 is a device at half speed.")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.task is None and not self.step_s:
            raise ValueError("no time is given, expected task, step_s or both")
        if isinstance(self.task, Trace) and self.task.steps_s is not None:
            raise ValueError("task is a trace over time, expected one with values_s, a value for each task")
        if self.jitter is not None and not 0 <= self.jitter[0] <= self.jitter[1]:
            low, high = self.jitter
            raise ValueError(f"jitter is [{low:g}, {high:g}], expected two factors >= 0, the lower one first")
        return self


@dataclass(slots=True)
class Devices:
    """The devices of the clients of a run. A client without a device takes no time."""

    seed: int
    by_client: Mapping[int, Device]
    _speeds: dict[int, float] = field(default_factory=dict, init=False)  # a generator costs 20 us

    def __bool__(self) -> bool:
        """Whether any client has a device."""
        return bool(self.by_client)

    def duration_s(self, client_id: int, number: int, steps: int) -> float:
        """Compute time of task `number` of a client, >= 0. steps: its local steps."""
        device = self.by_client.get(client_id)
        if device is None:
            return 0.0
        rng = stream(self.seed, Stream.LATENCY, client_id, number)
        task_s = 0.0 if device.task is None else device.task.draw(rng, 0.0, number)
        seconds = device.factor * self._speed(client_id, device) * (task_s + device.step_s * steps)
        if device.jitter is None:
            return seconds
        low, high = device.jitter
        return seconds * (low + (high - low) * float(rng.random()))

    def _speed(self, client_id: int, device: Device) -> float:
        if not device.spread:
            return 1.0
        if client_id not in self._speeds:
            drawn = stream(self.seed, Stream.DEVICES, client_id).standard_normal()
            self._speeds[client_id] = exp(device.spread * float(drawn))
        return self._speeds[client_id]
