"""Counts of a run, for its progress and outcome; on a server also for metrics and the status page."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from unstale.compensators.compensator import UNCHANGED
from unstale.config.metrics import Target
from unstale.coordinator import actions
from unstale.journal.database import Database
from unstale.journal.history import Shown, history, shown, training_reports
from unstale.journal.recorder import IncomingUpdate
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Compensation
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate
from unstale.metrics import observe
from unstale.metrics.fairness import FromAnswers, OwnEvaluations
from unstale.metrics.named import CENTRAL, CLIENTS, POLICY, TRAINING, NameCounts, formatted
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.metrics.spread import Spread, report_mean, report_means, spreads
from unstale.server.commands import Applied, Evaluated, NotSaved, Saved
from unstale.server.slot_scheduler import Counts
from unstale.server.status import Status
from unstale.training.measured import MainMetric
from unstale_proto.errors import Reason

log = logging.getLogger("unstale.server")


class RunStats:
    """Counts of a run, on a server and in a simulation. Protocol thread only."""

    def __init__(
        self,
        rounds: int,
        on_progress: Callable[[Progress], None],
        evaluate_clients_every: int | None,
        main: MainMetric,
        target: Target | None = None,
    ) -> None:
        """main: the metric that is shown first. target: a value of a metric that ends the run, None for none."""
        self.own_evaluations = own = OwnEvaluations(evaluate_clients_every)
        self._client_metrics = FromAnswers(own, lambda: spreads(own.reports, main))
        of_target = main.name if target is None else target.name
        self._client_target = FromAnswers(own, lambda: report_mean(of_target, own.reports))
        self.main = main
        self.tally = Tally(rounds, main)
        self.target = target
        self.is_target_reached = False
        self._is_target_reported = target is None  # whether its metric was ever reported, or is warned of
        self._target_value: float | None = None  # last value of its metric
        self._central: Mapping[str, float] = {}  # metrics of the last version that was evaluated
        self._is_central = False  # whether the target's metric is measured on the test set
        self._round: Sequence[StagedUpdate] = ()  # updates of the last round that was closed
        self._on_progress = on_progress
        self._clients_at: dict[int, dict[str, int]] = {}  # at the start of each unfinished evaluation, by version

    def flush(self) -> None:
        """Hook for subclasses: record counts that were collected since the last call."""

    def model_sent(self, payload_bytes: int) -> None:
        """Hook for subclasses: count a model that was sent."""

    def judged(self, verdict: actions.Acknowledge, incoming: IncomingUpdate, bounds: NormBounds) -> None:  # noqa: ARG002
        """Count the verdict on an update."""
        if verdict.outcome is actions.Outcome.ACCEPTED:
            self.tally.accepted()
            own = incoming.evaluation
            if own is not None:
                version = incoming.event.base_version
                self.own_evaluations.answered(verdict.client_id, version, own.by_name, own.examples)

    def round_closed(self, updates: Sequence[StagedUpdate]) -> None:
        """Note the updates of a round that is being applied."""
        self._round = updates

    @property
    def client_metrics(self) -> dict[str, Spread]:
        """Metrics of the clients' last evaluations on their own test examples."""
        return self._client_metrics()

    @property
    def training_metrics(self) -> dict[str, Spread]:
        """Metrics of the training of the last round's updates."""
        return spreads(training_reports(self._round), self.main)

    def applied(self, applied: Applied, wait_s: float) -> None:  # noqa: ARG002
        """Count an applied round. wait_s: duration of the open round."""
        result = applied.result
        self.tally.applied(result.staleness, overflowed=result.overflowed)
        if result.compensation is not None:
            for note in self.tally.news(result.compensation.notes):
                log.warning("%s", note)
        self.check_target({})

    def check_target(self, metrics: Mapping[str, float]) -> None:
        """Note whether the target is reached: on the test set, or over the clients where that does not have its metric.

        metrics: of an evaluation on the test set, empty for none.
        """
        target = self.target
        if target is None:
            return
        self._is_target_reported |= target.name in metrics
        self._is_central |= target.name in metrics
        if not self._is_central:
            value = self._client_target()
            if value is None:
                value = report_mean(target.name, training_reports(self._round))
            self._is_target_reported |= value is not None
            metrics = {} if value is None else {target.name: value}
        self._target_value = metrics.get(target.name, self._target_value)
        self.is_target_reached |= target.is_reached(metrics)

    def on_evaluation_started(self, version: int, clients: Mapping[str, int]) -> None:
        """Store the number of clients in each state, for the progress at this version."""
        self._clients_at[version] = dict(clients)

    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        """Report the progress at a version whose evaluation has ended."""
        version, evaluation = evaluated.version, evaluated.evaluation
        self._central = evaluation.metrics
        self.check_target(evaluation.metrics)
        if self._round and (self.own_evaluations.every is None or self.own_evaluations.reports):
            self._warn_of_unreported_target(evaluation.metrics)
        clients = self._clients_at.pop(version)
        self._on_progress(
            self.tally.evaluated(
                version,
                evaluation.metrics,
                clients,
                at_s,
                client_metrics=self.client_metrics,
                training_metrics=self.training_metrics,
            )
        )

    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        """The outcome of the run. updates: Number by outcome. digest: Of the last version."""
        self._warn_of_unreported_target({})
        self._warn_of_unreported_main()
        outcome = self.tally.ended(
            finish.reason,
            version,
            updates,
            digest,
            at_s,
            self.own_evaluations.fairness,
            client_metrics=self.client_metrics,
            training_metrics=self.training_metrics,
        )
        return replace(outcome, missed=self._missed(version) if finish.reason == "finished" else None)

    def _missed(self, version: int) -> str | None:
        """A line on a target that was not reached; None without one."""
        if self.target is None or self.is_target_reached:
            return None
        value, name = self._target_value, self.target.name
        last = f"{name} was not reported" if value is None else f"the last {name} is {formatted(value, '.4f')}"
        return f"run.until, {self.target}, was not reached in {version} rounds; {last}"

    def _warn_of_unreported_main(self) -> None:
        """Log that no evaluation has the metric that an app or objective names, although there were some."""
        known = {**self._central, **self.client_metrics}
        if self.target is None and known and self.main.name not in {*known, "accuracy", "loss"}:
            why = "the metric to show first is %r, which no evaluation reports, expected one of %s"
            log.warning(why, self.main.name, ", ".join(sorted(known)))

    def _warn_of_unreported_target(self, central: Mapping[str, float]) -> None:
        """Log once that the metric of the target is not reported. central: of the test set."""
        if self._is_target_reported:
            return
        self._is_target_reported = True
        assert self.target is not None
        known = ", ".join(sorted({*central, *self.client_metrics, *self.training_metrics}))
        why = "run.until names %r, which neither an evaluation nor a client reports, so it does not end the run; %s"
        log.warning(why, self.target.name, f"expected one of {known}" if known else "nothing is reported")


class ServerStats(RunStats):
    """Also records metrics and the status. record: stores observations as metrics."""

    def __init__(
        self,
        *,
        rounds: int,
        record: Callable[[Iterable[Observation]], None],
        on_progress: Callable[[Progress], None],
        evaluate_clients_every: int | None,
        main: MainMetric,
        target: Target | None = None,
        status: Status | None = None,
    ) -> None:
        super().__init__(rounds, on_progress, evaluate_clients_every, main, target)
        self._record = record
        self._status = status or Status(clock=float, main=main)  # always 0.0
        self._transfers: tuple[Counts, Counts] | None = None
        self._observed: list[Observation] = []  # of updates and models, until `flush`
        self._norms: list[Norms] = []  # of updates, until `flush`
        self._bounds: Norms | None = None  # at the last of these updates
        own = self.own_evaluations
        self._client_means = FromAnswers(own, lambda: report_means(own.reports, main))
        self._fairness = FromAnswers(own, lambda: own.fairness)
        self._training_names = NameCounts()
        self._named: Mapping[str, Mapping[str, float]] = {}  # metrics by split, without the clients'
        self._status.follow(self.named_metrics)

    def restore(self, database: Database) -> None:
        """Count the rounds and evaluations of earlier servers of this run."""
        started_s = database.started_s()
        if started_s is not None:
            self.tally.started(started_s)
            self._status.started(started_s)
        of_policy: Mapping[str, float] = {}
        for row in database.rounds():
            of_policy = row.metrics
            staleness = [member.staleness for member in row.members]
            weights = [member.weight for member in row.members]
            self.tally.applied(staleness, overflowed=row.overflowed)
            durations_s = {"wait_s": row.wait_s, "compensate_s": row.compensate_s, "aggregate_s": row.aggregate_s}
            self._status.applied(
                row.version, staleness, weights, **durations_s, overflowed=row.overflowed, at_s=row.applied_s
            )
            if row.compensation is not None:
                compensation = row.compensation
                self._status.compensated(row.version, compensation.updates, compensation.errors, compensation.fallbacks)
        newest: Mapping[str, float] = {}
        for measured, of in history(database, self.main, every=self.own_evaluations.every):
            version, at_s, newest = measured.version, measured.at_s, measured.metrics
            self.tally.evaluated(version, newest, {}, at_s)
            self._show(version, of, measured.evaluate_s, at_s)
            self._record(observe.measured(newest, measured.class_accuracy))
        self._keep_named(CENTRAL, newest)
        for own in database.own_evaluations():
            self.own_evaluations.answered(own.client_id, own.version, own.metrics, own.examples)
        self.round_closed([update.staged for update in database.updates_of(database.last_version())])
        self._keep_named(TRAINING, self._training_means())
        self._keep_named(POLICY, of_policy)
        self.check_target(newest)

    def refused(self, reason: Reason) -> None:
        """Count a message that was answered with an error or dropped."""
        self._status.refused(reason)
        self._record([observe.refused(reason)])

    def given_back(self, cause: str) -> None:
        """Count a task that its client gave back. cause: as `translate.cause_of`."""
        if cause != Reason.UNAVAILABLE:
            self._status.given_back(cause)
        self._record([observe.given_back(cause)])

    def quarantined(self) -> None:
        """Count a quarantine of a client."""
        self._status.quarantined()
        self._record([observe.quarantined()])

    @override
    def model_sent(self, payload_bytes: int) -> None:
        self._status.started()
        self._observed.append(observe.model_sent(payload_bytes))

    def transfers(self, *, uploads: Counts, downloads: Counts) -> None:
        """Record the numbers of active, waiting and resumed transfers."""
        if (uploads, downloads) != self._transfers:
            self._record([*observe.transfers("received", *uploads), *observe.transfers("sent", *downloads)])
            self._transfers = uploads, downloads

    @override
    def judged(self, verdict: actions.Acknowledge, incoming: IncomingUpdate, bounds: NormBounds) -> None:
        super().judged(verdict, incoming, bounds)
        if incoming.norms is not None:
            self._norms.append(incoming.norms)
            self._bounds = bounds.bounds(incoming.staged.local_rate)
        if verdict.outcome is actions.Outcome.REJECTED:
            self._status.rejected(verdict.reason or "")
        self._observed += observe.verdict(verdict.outcome, verdict.reason, incoming.payload_bytes)

    @override
    def flush(self) -> None:
        # Recording takes time, so observations of many updates and models are recorded together.
        if self._observed:
            observed, self._observed = self._observed, []
            norms, self._norms = self._norms, []
            observed += observe.norms(norms, self._bounds)
            self._record(observed)

    @override
    def applied(self, applied: Applied, wait_s: float) -> None:
        super().applied(applied, wait_s)
        result = applied.result
        durations_s = {"wait_s": wait_s, "compensate_s": applied.compensate_s, "aggregate_s": applied.aggregate_s}
        version, staleness, weights = result.version, result.staleness, result.weights_K
        self._status.applied(version, staleness, weights, **durations_s, overflowed=result.overflowed)
        if result.overflowed:
            log.warning("version %d: the step left the range of float32 and was skipped", version)
        self._record(
            observe.round_applied(
                version,
                staleness,
                weights,
                **durations_s,
                device_memory_bytes=applied.device_memory_bytes,
                overflowed=result.overflowed,
            )
        )
        self._keep_named(TRAINING, self._training_means())
        self._keep_named(POLICY, result.metrics)
        if result.compensation is not None:
            self._compensated(version, result.compensation)

    @override
    def evaluated(self, evaluated: Evaluated, at_s: float) -> None:
        result, evaluate_s = evaluated.evaluation, evaluated.evaluate_s
        self._record([observe.phase("evaluate", evaluate_s), *observe.measured(result.metrics, result.class_accuracy)])
        self._keep_named(CENTRAL, result.metrics)
        training = report_means(training_reports(self._round), self.main)
        of = shown(result.metrics, self._client_means(), training, self.main)
        self._show(evaluated.version, of, evaluate_s, at_s)
        super().evaluated(evaluated, at_s)

    def _show(self, version: int, of: Shown, evaluate_s: float, at_s: float) -> None:
        """Show an evaluation on the status page."""
        self._status.evaluated(
            version, of.metrics, of.split, training_loss=of.training_loss, evaluate_s=evaluate_s, at_s=at_s
        )

    @override
    def check_target(self, metrics: Mapping[str, float]) -> None:
        super().check_target(metrics)
        if self.is_target_reached:
            self._status.target_reached()

    def checkpointed(self, item: Saved | NotSaved) -> None:
        """Count a checkpoint that was stored, or that did not fit on the disk."""
        if isinstance(item, Saved):
            self._status.saved(item.version, item.checkpoint_s)
            self._record([observe.phase("checkpoint", item.checkpoint_s)])
        else:
            self._record([observe.checkpoint_left_out()])

    @override
    def ended(
        self, finish: actions.Finish, version: int, updates: Mapping[str, int], digest: str, at_s: float
    ) -> Outcome:
        self._status.ended(digest, at_s)
        return super().ended(finish, version, updates, digest, at_s)

    def _compensated(self, version: int, result: Compensation) -> None:
        self._status.compensated(version, result.updates, result.errors, result.fallbacks)
        methods = Counter(update.method for update in result.updates if update.method != UNCHANGED)
        errors: dict[str, list[tuple[float, float]]] = {}
        for error in result.errors:
            errors.setdefault(error.method, []).append((error.l1, error.cosine))
        iterations = sum(update.iterations or 0 for update in result.updates)
        self._record(observe.compensated(methods, iterations, result.fallbacks, errors))

    # --- metrics that are computed when they are read ---

    def named_metrics(self) -> dict[str, Mapping[str, float]]:
        """The latest metrics by name, by split. Any thread."""
        return {**self._named, CLIENTS: self._client_means()}

    def gauges(self) -> list[Observation]:
        """The metrics of `named_metrics`, and of the clients' accuracy, for a scrape. Any thread."""
        gauges = [one for split, metrics in self.named_metrics().items() for one in observe.named(split, metrics)]
        fairness = self._fairness()
        return gauges if fairness is None else [*gauges, *observe.own_evaluations(fairness)]

    @override
    def round_closed(self, updates: Sequence[StagedUpdate]) -> None:
        super().round_closed(updates)
        for report in training_reports(updates):
            self._training_names.report(report.client_id, report.metrics)

    def _training_means(self) -> dict[str, float]:
        """The metrics that are common in training, of the last round that has them."""
        latest = {**self._named.get(TRAINING, {}), **report_means(training_reports(self._round), self.main)}
        is_common = self._training_names.is_common
        return {name: value for name, value in latest.items() if name == self.main.name or is_common(name)}

    def _keep_named(self, split: str, metrics: Mapping[str, float]) -> None:
        self._named = {**self._named, split: metrics}  # replaced, because other threads read it
