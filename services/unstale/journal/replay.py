"""Recomputes a run from its journal, and applies another policy to its recorded rounds.

Legend: K updates of a round, in order of arrival; D numbers of an update's row.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from torch import Tensor
from typing_extensions import override

from unstale.compensators import StaleRound, StaleUpdate
from unstale.config import build
from unstale.config.compensation import compensator
from unstale.config.load import Given, load
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.main_metric import main_metric
from unstale.journal.rounds import RecordedRounds
from unstale.journal.rows import RoundRow
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale.learner.learner import Learner, RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.metrics.named import in_order
from unstale.policies.registry import find
from unstale.training.measured import MainMetric
from unstale_client.disk import DamagedError

MACHINE_KEYS = frozenset(
    (
        *("device", "device_precision", "threads", "data.path", "data.cache", "data.download"),
        *("policy.memory", "policy.memory_folder"),
    )
)
"""Keys about the machine that replays: they change a result by rounding at most."""


class RecordedRun:
    """The directory of a run, open for reading while a server may write to it; a context manager.

    Raises UserError if it is not a run directory, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.look(path)
        self.settings = self.directory.settings
        self.database = Database(self.directory.database, read_only=True)

    @property
    def main_metric(self) -> MainMetric:
        """The metric that the run shows first."""
        return main_metric(self.database, self.settings)

    def check(self) -> None:
        """Raise DamagedError where a row of the database is damaged or contradicts another."""
        with self.database.snapshot():
            self.database.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A recomputed version that differs. Fields are keys of `replay --json`."""

    version: int
    recorded: str  # here and below: digest, hex; or value of the metric
    computed: str
    metric: str | None = None  # of policy or compensator that differs; None where the model does


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Metrics by name, the main one first, recorded and of the other policy. Fields are keys of `replay --json`."""

    version: int
    metrics: Mapping[str, float]
    other_metrics: Mapping[str, float]


def is_policy_key(key: str) -> bool:
    """Whether a key of the policy can change its results by more than rounding."""
    return key.startswith("policy.") and key not in MACHINE_KEYS


def changed(recorded: Settings, options: Mapping[str, Given]) -> Settings:
    """Settings of a run, changed by options for the machine or the policy. Raises UserError for other keys.

    Settings of the recorded policy are dropped if the options name another one. options: by key, as for `config.load`.
    """
    values = load(None, None, options).model_dump(exclude_unset=True)
    for key, item in options.items():
        if not (is_policy_key(key) or key in MACHINE_KEYS):
            raise UserError(
                f"{item.origin}: {key} cannot differ from the recorded run, expected a key of policy, or one of "
                f"{', '.join(sorted(MACHINE_KEYS))}"
            )
    recorded_values = recorded.model_dump(exclude_defaults=True)
    if values.get("policy", {}).get("name", recorded.policy.name) != recorded.policy.name:
        recorded_values.get("policy", {}).pop("settings", None)
    return Settings(**_merged(recorded_values, values))


@dataclass(frozen=True, slots=True)
class _Needed(Container[int]):
    """Versions that a round after the current version needs. Not a set: that would take as long as the run is."""

    last_use: Mapping[int, int]  # by base version, as of `Replay`
    current: int

    def __contains__(self, version: object) -> bool:
        return version == self.current or (isinstance(version, int) and self.last_use.get(version, 0) > self.current)


class Replay:
    """Recomputes every version of a run and compares its digest, and the metrics of policy and compensator."""

    def __init__(self, run: RecordedRun, settings: Settings, *, keep_versions: bool = False) -> None:
        """keep_versions: also store base models that only another learner needs. Raises UserError for unusable data."""
        database = run.database
        self._last_use: dict[int, int] = {}  # by base version: version made by the last round that needs it
        self.last = 0  # newest recorded version at the start
        for row in database.rounds():
            self.last = row.version
            for member in row.members:
                self._last_use[row.version - 1 - member.staleness] = row.version
        if self.last == 0:
            raise UserError(f"the run in {run.directory.path} has no rounds yet; replay it after the first round")
        parts = build.run_components(
            settings, partial(compensator, clock=float), fresh_update=_no_fresh_update, keep_versions=keep_versions
        )
        self.workspace, self.learner = parts.workspace, parts.learner
        self._recorded = RecordedRounds(
            database, Segments(run.directory.segments), run.directory.compensations, self.learner.row_numbers
        )
        self._run = run
        self._loaded = {0}  # versions that the learner has at the start
        self.first = self._start()  # version: 0, or that of the oldest checkpoint if earlier updates were deleted
        self.version = self.first  # the last one that was computed and equals the recorded one
        self.updates = 0  # number in these rounds
        self.first_difference: Difference | None = None  # the replay stops at it

    def rounds(self) -> Iterator[tuple[Tensor, tuple[RoundUpdate, ...]]]:
        """Apply each round; yields its matrix [K, D] float32, read-only, and its updates. Ends at a difference."""
        for row in self._run.database.rounds(self.first):
            if row.version > self.last:
                return  # stored after this replay started
            if row.version != self.version + 1:
                raise DamagedError(
                    f"{self._run.database.path} has no round of version {self.version + 1}; put it back from a copy"
                )
            updates, members = self._recorded.members(row)
            matrix_KD = self._recorded.matrix(updates)
            estimates = self._recorded.made(row)
            self.first_difference = _difference(row, self.learner.apply_round(matrix_KD, members, estimates))
            if self.first_difference is not None:
                return
            self.version, self.updates = row.version, self.updates + len(updates)
            yield matrix_KD, members
            self._forget(row.version)

    def check_bases(self) -> None:
        """Raise UserError if the base model of an update is not available."""
        missing = {
            version
            for version, last_use in self._last_use.items()
            if last_use > self.first > version and version not in self._loaded
        }
        if missing:
            raise UserError(
                f"version {min(missing)}, a base version of updates, is no longer stored, and this policy needs it; "
                "record a run with --run.keep-updates, or name another policy"
            )

    def _start(self) -> int:
        """Load the oldest intact checkpoint if earlier rounds cannot be computed; returns its version, or 0."""
        rows = self._run.database.checkpoints()  # newest first
        if not rows or self._can_compute(rows[-1].version):
            return 0
        damaged: DamagedError | None = None
        for row in reversed(rows):
            try:
                file = self._run.directory.checkpoints / row.file
                state, _ = checkpoints.read_at(file, row.seq, self._run.database.last_seq())
            except DamagedError as error:
                damaged = error
                continue
            self.learner.load_state_dict(state["learner"])
            self._loaded = {row.version, *state["learner"]["versions"]}
            self._forget(row.version)
            return row.version
        assert damaged is not None
        raise damaged

    def _can_compute(self, last: int) -> bool:
        """Whether the updates and estimates of all rounds up to a version are stored."""
        database = self._run.database
        return all(
            self._recorded.has_made(row)
            and all(update.location is not None for update in database.updates_of(row.version))
            for row in database.rounds()
            if row.version <= last
        )

    def _forget(self, current: int) -> None:
        """Delete versions that no round after the current version needs."""
        self.learner.keep_only(_Needed(self._last_use, current))


class Comparison:
    """Applies another policy to the recorded rounds of a run.

    Clients trained on versions of the recorded policy, so this is not a run with the other policy: updates and base
    models are the recorded ones.
    """

    def __init__(self, run: RecordedRun, settings: Settings, other: Settings) -> None:
        """other: settings with the other policy. Raises UserError if it cannot be applied to these updates."""
        _check_can_apply(run.settings, other)
        self.main_metric = run.main_metric
        self.needs_base_models = build.policy_in_small(other).needs_base_models
        self.replay = replay = Replay(run, settings, keep_versions=self.needs_base_models)  # with the run's own policy
        self._learner = _OtherLearner(replay, other)
        if self.needs_base_models:
            replay.check_bases()
        self._evaluations = {row.version: row for row in run.database.evaluations()}
        self._evaluate = build.evaluation(replay.workspace)

    def points(self) -> Iterator[Point]:
        """Both policies at every evaluated version, up to the first difference of the replay."""
        yield from self._point(self.replay.first)
        for matrix_KD, members in self.replay.rounds():
            self._learner.apply_round(matrix_KD, members)
            self._learner.keep_only(())  # `base` returns those of the replay
            yield from self._point(self.replay.version)

    def _point(self, version: int) -> Iterator[Point]:
        row = self._evaluations.get(version)
        if row is not None:
            other = self._evaluate(self._learner.sent)
            yield Point(
                version=version,
                metrics=in_order(row.metrics, self.main_metric),
                other_metrics=in_order(other.metrics, self.main_metric),
            )


class _OtherLearner(Learner):
    """A learner with another policy, whose base models are those of a replay."""

    def __init__(self, replay: Replay, settings: Settings) -> None:
        """Start at the replay's first version, with a policy before its first round."""
        model, device = replay.workspace.model, replay.workspace.device
        super().__init__(
            model.parameters_d,
            build.policy(settings, model.dimension, device, build.coordinator_settings(settings)),
            learning_rate=build.learning_rate(settings.training, settings.rounds),
            server_multiplier=settings.policy.server_multiplier,
            buffers_b=model.buffers_b,
        )
        self._recorded = replay.learner
        if replay.first > 0:
            self._start_at(replay.learner)

    @override
    def base(self, version: int) -> Version:
        return self._recorded.base(version)

    def _start_at(self, recorded: Learner) -> None:
        """Take over the model and the counts of rounds, but no state of the policy, which includes extra_d."""
        theirs, own = recorded.state_dict(), self.state_dict()
        sent = {**theirs["sent"], "extra_d": own["sent"]["extra_d"]}
        counts = {"version": theirs["version"], "counted": theirs["counted"]}
        self.load_state_dict({**own, **counts, "sent": sent, "versions": {}})


def _difference(row: RoundRow, result: RoundResult) -> Difference | None:
    """How a recomputed round differs. Metrics that only one of both versions of the code has are not compared."""
    digest = result.sent.digest
    if digest != row.digest:
        return Difference(version=row.version, recorded=row.digest, computed=digest)
    for name, recorded in row.metrics.items():
        computed = result.metrics.get(name, recorded)
        if computed != recorded:
            return Difference(version=row.version, recorded=repr(recorded), computed=repr(computed), metric=name)
    return None


def _no_fresh_update(update: StaleUpdate, stale: StaleRound) -> NoReturn:
    """Fail: recorded rounds already contain the fresh updates that a simulation computed."""
    raise AssertionError(f"fresh update of client {update.client_id} at version {stale.version} is not recorded")


def _check_can_apply(recorded: Settings, other: Settings) -> None:
    """Raise UserError if the policy of `other` cannot use the updates of a run."""
    former, policy = recorded.policy.name, other.policy.name
    trained = recorded.training.name
    needed = find(policy).training
    if needed not in (None, trained):
        raise UserError(
            f"policy {policy!r} is for clients that train with {needed!r}, and those of this run trained with "
            f"{trained!r}; name another policy"
        )
    if find(former).sends_extra and policy != former:
        raise UserError(
            f"the clients of this run trained with {trained!r} and a second vector of policy {former!r}, "
            f"which policy {policy!r} cannot use; replay a run with other training"
        )


def _merged(defaults: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings merged key by key."""
    merged = dict(defaults)
    for key, value in overrides.items():
        default = merged.get(key)
        merged[key] = _merged(default, value) if isinstance(default, dict) and isinstance(value, dict) else value
    return merged
