"""Checks updates: the header against its task, the vectors against norm bounds. The coordinator checks the rest."""

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from math import hypot

import torch
from torch import Tensor

from unstale.config.settings import Settings
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.journal.rows import RoundRow
from unstale.learner import row_checks
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Learner, RoundResult
from unstale.learner.row_checks import Layout, Norms
from unstale.learner.updates import Vector
from unstale.training.local import Kind
from unstale.training.registry import create as create_training
from unstale_proto.errors import Reason
from unstale_proto.messages import Update

log = logging.getLogger("unstale.server")

_PART = 2**22  # numbers whose copy in float64 takes 32 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Header fields of a valid update."""

    kind: Kind | None = None  # of every update; None for any
    examples_max: Callable[[int], int | None] | None = None  # by client id; None for any
    zero_deltas: bool = False  # whether a delta may be zero
    late: int = 0  # most versions between the base version of a task and the current one, when the task is sent


@dataclass(eq=False)
class Admission:
    """Checks updates and logs contradictions. One thread."""

    bounds: NormBounds
    expected: Expected = field(default_factory=Expected)
    _: KW_ONLY
    rates: InitVar[Iterable[float] | None] = None
    """Learning rate of the tasks sent at each version, from version 0; None to accept any rate."""

    def __post_init__(self, rates: Iterable[float] | None) -> None:
        self._rates = None if rates is None else array("d", rates)

    def published(self, result: RoundResult | RoundRow) -> None:
        """Record the learning rate at a new version; a server that resumes calls it for each stored version."""
        if self._rates is not None:
            assert result.version == len(self._rates), f"version {result.version} after {len(self._rates) - 1}"
            self._rates.append(result.learning_rate)

    def contradiction(self, client_id: int, update: Update) -> str | None:
        """Return the first contradiction between a header and its task, as a message; None without one."""
        expected = self.expected
        if expected.kind is not None and update.kind != expected.kind:
            return f"its kind is {update.kind!r}, expected {expected.kind!r}, the kind of the run's training"
        rates = self._rates_of(update.base_version)
        if rates and update.learning_rate not in rates:
            return f"its learning rate is {update.learning_rate!r}, expected {rates[0]!r}, the rate of its task"
        examples_max = None if expected.examples_max is None else expected.examples_max(client_id)
        if examples_max is not None and update.num_examples > examples_max:
            return f"it claims {update.num_examples} examples, expected at most {examples_max} from this client"
        if update.batch_examples is not None and update.batch_examples > update.num_examples:
            return f"its batch has {update.batch_examples} examples, expected at most {update.num_examples}"
        return None

    def refuses(self, client_id: int, update: Update) -> bool:
        """Whether the header of an update contradicts its task. Logs the contradiction."""
        contradiction = self.contradiction(client_id, update)
        if contradiction is not None:
            log.warning("client %d: the update of task %d is refused: %s", client_id, update.task_id, contradiction)
        return contradiction is not None

    def screen(
        self, client_id: int, update: Update, row_D: Vector, layout: Layout
    ) -> tuple[Norms | None, Reason | None]:
        """The norms of a row [D] float32, None for one with a defect, and the reason of a refusal or None."""
        norms = row_checks.norms(row_D, layout)
        defect = row_checks.defect(norms, update.kind, zero_deltas=self.expected.zero_deltas)
        if defect is not None:
            return None, Reason(defect)
        is_allowed = self.bounds.allow(client_id, norms, update.learning_rate)
        return norms, None if is_allowed else Reason.NORM_TOO_LARGE

    def judged(self, verdict: Acknowledge, base_version: int, norms: Norms | None) -> None:
        """Record the verdict on an update in the bounds. norms: from `screen`."""
        if verdict.outcome is not Outcome.DUPLICATE:
            self.bounds.replay(verdict.client_id, base_version, norms, verdict.reason)

    def _rates_of(self, base_version: int) -> Sequence[float]:
        """Return the rates at all times when a task of this version may be sent. Empty: unknown version or any rate."""
        if self._rates is None:
            return ()
        return self._rates[base_version : base_version + 1 + self.expected.late]


def configured(
    settings: Settings, learner: Learner, examples_of: Callable[[int], int | None], *, late: int
) -> Admission:
    """Return the admission of a run at version 0.

    examples_of: number of training examples by client id, None for any. late: as in `Expected`.
    """
    server, initial = settings.server, learner.sent
    fixed_max = server.num_examples_max if isinstance(server.num_examples_max, int) else None
    return Admission(
        NormBounds(
            server.norm_max,
            clients=settings.clients,
            model_norm=_norm(initial.model_d),
            buffers_norm=_norm(initial.buffers_b),
        ),
        Expected(
            kind=create_training(settings.training).kind,
            examples_max=examples_of if server.num_examples_max == "partition" else lambda _: fixed_max,
            zero_deltas=settings.is_app,
            late=late,
        ),
        rates=[learner.learning_rate],
    )


def _norm(vector_d: Tensor) -> float:
    """The L2 norm of [d] float32, in float64, of a part at a time."""
    return hypot(*(float(part.double().norm()) for part in torch.split(vector_d, _PART)))
