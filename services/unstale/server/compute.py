"""The compute thread, which alone touches the learner: it executes commands in order, and posts their results."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unstale import flat
from unstale.compensators import Made
from unstale.learner.device import compute_here
from unstale.learner.learner import Learner
from unstale.learner.versions import Version
from unstale.server import commands
from unstale.training.measured import Measured
from unstale_client.disk import NoRoomError
from unstale_client.net.clock import now_s
from unstale_proto import payload
from unstale_proto.encodings import Encoding

Save = Callable[[commands.CheckpointCommand, Mapping[str, Any]], tuple[str, int]]
"""Writes a checkpoint of a learner's state; name and size of the file."""


@dataclass(kw_only=True, eq=False)
class Compute:
    """Owns the learner from `start` to `close`."""

    learner: Learner
    evaluate: Callable[[Version], Measured]
    post: Callable[[commands.ComputeResult], None]  # takes results, from the compute thread
    save: Save | None = None  # writes a checkpoint; None where the run is not stored, and then versions need no digest
    keep: Callable[[int, Made], None] | None = None  # stores results of the compensator for a version, for replay
    encoding: Encoding | None = None  # of the models, None for float32

    def __post_init__(self) -> None:
        self._device_memory_bytes = _device_memory_of(self.learner.model_d.device)
        self._commands: queue.SimpleQueue[commands.Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: commands.Command) -> None:
        """Queue a command. Any thread; order is kept."""
        self._commands.put(command)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Execute the queued commands, except for unfinished work on other machines, then end the thread."""
        compensator = self.learner.compensator
        if compensator is not None and compensator.context.executor is not None:
            compensator.context.executor.stop()
        self._commands.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            compute_here()
            while (command := self._next()) is not None:
                self._perform(command)
        except BaseException as error:  # noqa: BLE001  (handed to the main thread, which raises it)
            self.post(commands.Crashed(error=error))

    def _next(self) -> commands.Command | None:
        """The next command. Until then the learner continues the work that it has begun, a little at a time."""
        while True:
            try:
                return self._commands.get_nowait()
            except queue.Empty:
                if not self.learner.work():
                    return self._commands.get()

    def _perform(self, command: commands.Command) -> None:
        started_s = now_s()
        if isinstance(command, commands.ApplyCommand):
            rows = self.learner.here(command.round.ready())
            begun_s = now_s()
            made = self.learner.make(rows, command.updates)
            compensate_s = now_s() - begun_s
            result = self.learner.apply_round(rows, command.updates, made, may_write=rows is not command.round.rows)
            command.round.release()
            kept = None if result.compensation is None else result.compensation.made
            if kept is not None and self.keep is not None:
                self.keep(result.version, kept)
            parts = flat.on_host(*result.sent.parts)
            encoded = () if self.encoding is None else _frames(parts, self.encoding)
            frames = _frames(parts)
            self.post(
                commands.Applied(
                    result=result,
                    frames=frames,
                    encoded=encoded,
                    aggregate_s=now_s() - started_s - compensate_s,
                    compensate_s=compensate_s,
                    device_memory_bytes=self._device_memory_bytes(),
                    # Of the frames, which are in host memory already: `result.sent.digest` would fetch them again.
                    digest="" if self.save is None else flat.digest_of_frames(frames),
                )
            )
        elif isinstance(command, commands.PrecomputeCommand):
            self.learner.precompute(command.row_D, command.update)
        elif isinstance(command, commands.EvaluateCommand):
            assert command.version == self.learner.version, (command.version, self.learner.version)
            evaluation = self.evaluate(self.learner.sent)
            self.post(
                commands.Evaluated(version=command.version, evaluation=evaluation, evaluate_s=now_s() - started_s)
            )
        elif isinstance(command, commands.CheckpointCommand):
            self.post(self._checkpoint(command, started_s))
        else:
            self.learner.forget(command.version)

    def _checkpoint(self, command: commands.CheckpointCommand, started_s: float) -> commands.Saved | commands.NotSaved:
        assert self.save is not None
        assert command.version == self.learner.version, (command.version, self.learner.version)
        try:
            file, size_bytes = self.save(command, self.learner.state_dict())
        except NoRoomError as error:
            return commands.NotSaved(version=command.version, error=error)
        return commands.Saved(
            version=command.version, seq=command.seq, file=file, size_bytes=size_bytes, checkpoint_s=now_s() - started_s
        )


def frames_of(version: Version, encoding: Encoding | None = None) -> list[memoryview]:
    """A version as payload frames. encoding: None for float32, without a copy where it lies in host memory."""
    return _frames(flat.on_host(*version.parts), encoding)


def _frames(parts: Sequence[Tensor], encoding: Encoding | None = None) -> list[memoryview]:
    """Vectors on the host as payload frames."""
    data = [flat.to_bytes(part) for part in parts]
    if encoding is not None:
        return encoding.frames(data)
    return [frame for part in data for frame in payload.split(part)]


def _device_memory_of(device: torch.device) -> Callable[[], int]:
    """A function of the bytes that tensors hold on an accelerator; 0 on a CPU."""
    if device.type == "cuda":
        return partial(torch.cuda.memory_allocated, device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory
    return int
