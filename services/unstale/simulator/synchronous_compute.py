"""The compute side of a simulation: executes commands at once, in the thread of the simulation."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from unstale.learner.learner import Learner, RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.server.commands import Applied, ApplyCommand, Command, EvaluateCommand, Evaluated, ForgetCommand
from unstale.simulator.encoded import Encoded
from unstale.simulator.recording import SimulationRecorder
from unstale.training.evaluate import Evaluation


class Watcher(Protocol):
    """Observes a simulation."""

    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        """A round was applied. updates: of the round, in order of arrival."""

    def evaluated(self, version: int, evaluation: Evaluation, at_s: float) -> None:
        """A version was evaluated. at_s: virtual time."""


class SynchronousCompute:
    """Commands take no virtual time.

    Args:
        learner: Makes versions.
        encoded: Keeps the versions that clients receive.
        evaluate: Evaluates a version.
        clock: Virtual time.
        recorder: Records the run; None for none.
        watcher: Observes rounds and evaluations; None for none.

    Attributes:
        commands: Submitted and not executed yet.
    """

    def __init__(
        self,
        learner: Learner,
        encoded: Encoded,
        evaluate: Callable[[Version], Evaluation],
        *,
        clock: Callable[[], float],
        recorder: SimulationRecorder | None,
        watcher: Watcher | None,
    ) -> None:
        self._learner, self._encoded, self._evaluate = learner, encoded, evaluate
        self._clock = clock
        self._recorder, self._watcher = recorder, watcher
        self.commands: deque[Command] = deque()

    def execute(self, command: Command) -> Applied | Evaluated | None:
        """Execute a command; its result, if it has one."""
        if isinstance(command, ApplyCommand):
            return self._apply(command)
        if isinstance(command, EvaluateCommand):
            return self._evaluated(command)
        assert isinstance(command, ForgetCommand), command
        self._learner.forget(command.version)
        self._encoded.forget(command.version)
        return None

    def _apply(self, command: ApplyCommand) -> Applied:
        result = self._learner.apply_round(command.round.rows, command.updates)
        command.round.release()
        if self._watcher is not None:
            self._watcher.round_applied(result, command.updates)
        digest = ""
        if self._recorder is not None:
            digest = result.sent.digest
            if result.compensation is not None and result.compensation.made is not None:
                self._recorder.keep_made(result.version, result.compensation.made)
        return Applied(result=result, frames=[], aggregate_s=0.0, device_memory_bytes=0, digest=digest)

    def _evaluated(self, command: EvaluateCommand) -> Evaluated:
        assert command.version == self._learner.version, (command.version, self._learner.version)
        evaluation = self._evaluate(self._learner.sent)
        if self._watcher is not None:
            self._watcher.evaluated(command.version, evaluation, self._clock())
        return Evaluated(version=command.version, evaluation=evaluation, evaluate_s=0.0)
