"""Collects the counts from which the progress and the outcome of a run are made, on a server and in a simulation."""

import logging
from collections.abc import Callable, Mapping

from unstale.coordinator import actions
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.bounds import NormBounds
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.server.commands import Applied, Evaluated

log = logging.getLogger("unstale.server")


class RunStats:
    """Counts of a run. Protocol thread only. A server's subclass also records metrics.

    Args:
        rounds: Rounds of the run; each makes a version.
        on_progress: Receives the progress of every evaluation.
        evaluate_clients_every: Rounds between evaluations by the clients; None for none.
    """

    def __init__(
        self, rounds: int, on_progress: Callable[[Progress], None], evaluate_clients_every: int | None
    ) -> None:
        self.own_evaluations = OwnEvaluations(evaluate_clients_every)
        self.tally = Tally(rounds)
        self._on_progress = on_progress
        self._clients_at: dict[int, dict[str, int]] = {}  # by version that is being evaluated

    def flush(self) -> None:
        """Hook for subclasses: record the counts since the last call."""

    def model_sent(self, payload_bytes: int) -> None:
        """Hook for subclasses: count a model that was sent."""

    def judged(self, verdict: actions.Acknowledge, incoming: IncomingUpdate, bounds: NormBounds) -> None:  # noqa: ARG002
        """Count the verdict on an update."""
        if verdict.outcome is actions.Outcome.ACCEPTED:
            self.tally.accepted()
            evaluation = incoming.evaluation
            if evaluation is not None:
                base_version = incoming.event.base_version
                self.own_evaluations.answered(verdict.client_id, base_version, evaluation.accuracy)

    def applied(self, applied: Applied, wait_s: float) -> None:  # noqa: ARG002
        """Count a round. wait_s: time for which it was open."""
        result = applied.result
        self.tally.applied(result.staleness, overflowed=result.overflowed)
        if result.compensation is not None:
            for note in self.tally.news(result.compensation.notes):
                log.warning("%s", note)

    def on_evaluation_started(self, version: int, clients: Mapping[str, int]) -> None:
        """Note the start of an evaluation. clients: Number of clients in each state."""
        self._clients_at[version] = dict(clients)

    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        """Report the progress at an evaluated version."""
        version, evaluation = evaluated.version, evaluated.evaluation
        clients = self._clients_at.pop(version)
        self._on_progress(self.tally.evaluated(version, evaluation.accuracy, evaluation.loss, clients, at_s))

    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        """Return the outcome of the run. updates: Number by outcome. digest: Of the last version."""
        return self.tally.ended(finish.reason, version, updates, digest, at_s, self.own_evaluations.fairness)
