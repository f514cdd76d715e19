"""The compute side of a simulation: executes commands at once, in the thread of the simulation."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unstale.learner.learner import Learner, RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.server.commands import Applied, ApplyCommand, Command, EvaluateCommand, Evaluated, ForgetCommand
from unstale.simulator.encoded import Encoded
from unstale.simulator.recording import SimulationRecorder
from unstale.training.measured import Measured


class Watcher(Protocol):
    """Observes a simulation."""

    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        """A round was applied. updates: of the round, in order of arrival."""

    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        """A version was evaluated. at_s: virtual time."""


@dataclass(slots=True, eq=False, kw_only=True)
class SynchronousCompute:
    """Executes commands, which take no virtual time."""

    learner: Learner
    encoded: Encoded  # keeps the versions that clients receive
    evaluate: Callable[[Version], Measured]
    clock: Callable[[], float]  # virtual time
    recorder: SimulationRecorder | None
    watcher: Watcher | None
    commands: deque[Command] = field(default_factory=deque)  # submitted and not executed yet

    def execute(self, command: Command) -> Applied | Evaluated | None:
        """Execute a command; its result, if it has one."""
        if isinstance(command, ApplyCommand):
            return self._apply(command)
        if isinstance(command, EvaluateCommand):
            return self._evaluated(command)
        assert isinstance(command, ForgetCommand), command
        self.learner.forget(command.version)
        self.encoded.forget(command.version)
        return None

    def _apply(self, command: ApplyCommand) -> Applied:
        result = self.learner.apply_round(command.round.ready(), command.updates)
        command.round.release()
        if self.watcher is not None:
            self.watcher.round_applied(result, command.updates)
        digest = ""
        if self.recorder is not None:
            digest = result.sent.digest
            if result.compensation is not None and result.compensation.made is not None:
                self.recorder.keep_made(result.version, result.compensation.made)
        return Applied(result=result, frames=[], aggregate_s=0.0, device_memory_bytes=0, digest=digest)

    def _evaluated(self, command: EvaluateCommand) -> Evaluated:
        assert command.version == self.learner.version, (command.version, self.learner.version)
        evaluation = self.evaluate(self.learner.sent)
        if self.watcher is not None:
            self.watcher.evaluated(command.version, evaluation, self.clock())
        return Evaluated(version=command.version, evaluation=evaluation, evaluate_s=0.0)
