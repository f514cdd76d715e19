"""What the exchange wants computed, and what became of it."""

from dataclasses import dataclass

from unstale.learner.learner import RoundResult
from unstale.learner.updates import Round, RoundUpdate
from unstale.training.evaluate import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCommand:
    """Make the next version out of these rows, and give their memory back."""

    round: Round
    updates: tuple[RoundUpdate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCommand:
    """Measure the current version, which is this one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCommand:
    """Nothing refers to this version any more."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A round is a version. frames: what is sent of it, as payload frames; they share memory with it."""

    result: RoundResult
    frames: list[memoryview]
    aggregate_s: float
    device_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A version was measured."""

    version: int
    evaluation: Evaluation
    evaluate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The compute thread is dead of this: our own mistake, or the machine's."""

    error: BaseException


Command = ApplyCommand | EvaluateCommand | ForgetCommand
Result = Applied | Evaluated | Crashed
