"""Validates updates: the header against its task, the vectors against the bounds. The coordinator decides the rest."""

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Header fields of an honest update."""

    kind: Kind | None = None  # of every update; None for any
    examples_max: Callable[[int], int | None] | None = None  # that a client may claim, by its id; None for any number
    late: int = 0  # rounds that the version of a task can lie behind the current one when it is given


@dataclass(eq=False)
class Admission:
    """Decides which updates are refused. One thread."""

    bounds: NormBounds
    expected: Expected = field(default_factory=Expected)
    _: KW_ONLY
    rates: InitVar[Iterable[float] | None] = None
    """Learning rate of the tasks of each version so far, from version 0; None to take any rate."""

    def __post_init__(self, rates: Iterable[float] | None) -> None:
        self._rates = None if rates is None else array("d", rates)

    def published(self, made: RoundResult | RoundRow) -> None:
        """A version was made, now or before a restart: its tasks have this learning rate."""
        if self._rates is not None:
            assert made.version == len(self._rates), f"version {made.version} after {len(self._rates) - 1}"
            self._rates.append(made.learning_rate)

    def contradiction(self, client_id: int, update: Update) -> str | None:
        """Contradiction between an update and its task, as a message; None without one."""
        expected = self.expected
        if expected.kind is not None and update.kind != expected.kind:
            return f"its kind is {update.kind!r}, expected {expected.kind!r}, as the run's training makes it"
        rates = self._rates_of(update.base_version)
        if rates and update.learning_rate not in rates:
            return f"its learning rate is {update.learning_rate!r}, expected {rates[0]!r}, that of its task"
        most = None if expected.examples_max is None else expected.examples_max(client_id)
        if most is not None and update.num_examples > most:
            return f"it claims {update.num_examples} examples, expected at most {most} of this client"
        if update.batch_examples is not None and update.batch_examples > update.num_examples:
            return f"its batch has {update.batch_examples} of {update.num_examples} examples, expected no more"
        return None

    def refuses(self, client_id: int, update: Update) -> bool:
        """Whether the header of an update contradicts its task; the contradiction is logged."""
        why = self.contradiction(client_id, update)
        if why is not None:
            log.warning("client %d: the update of task %d is refused: %s", client_id, update.task_id, why)
        return why is not None

    def screen(
        self, client_id: int, update: Update, row_D: Vector, layout: Layout
    ) -> tuple[Norms | None, Reason | None]:
        """Norms of an update's vectors, if they are numbers, and the reason of a refusal. row_D: [D] float32."""
        norms = row_checks.norms(row_D, layout)
        defect = row_checks.defect(norms, update.kind)
        if defect is not None:
            return None, Reason(defect)
        is_allowed = self.bounds.allow(client_id, norms, update.learning_rate)
        return norms, None if is_allowed else Reason.NORM_TOO_LARGE

    def judged(self, verdict: Acknowledge, base_version: int, norms: Norms | None) -> None:
        """Count the verdict on an update. norms: as measured by `screen`."""
        if verdict.outcome is not Outcome.DUPLICATE:
            self.bounds.replay(verdict.client_id, base_version, norms, verdict.reason)

    def _rates_of(self, base_version: int) -> Sequence[float]:
        """Learning rates that a task of this version may have had: that of the time when it was sent. Empty for any."""
        if self._rates is None:
            return ()
        return self._rates[base_version : base_version + 1 + self.expected.late]


def configured(settings: Settings, learner: Learner, examples_of: Callable[[int], int], *, late: int) -> Admission:
    """The admission of a run that begins.

    examples_of: Examples of a client's share of the training set. late: Most rounds by which a client is late.
    """
    chosen = settings.server
    first = learner.sent
    by_number = chosen.num_examples_max if isinstance(chosen.num_examples_max, int) else None
    return Admission(
        NormBounds(
            chosen.norm_max,
            clients=settings.clients,
            model_norm=float(first.model_d.double().norm()),
            buffers_norm=float(first.buffers_b.double().norm()),
        ),
        Expected(
            kind=create_training(settings.training).kind,
            examples_max=examples_of if chosen.num_examples_max == "partition" else lambda _: by_number,
            late=late,
        ),
        rates=[learner.learning_rate],
    )
