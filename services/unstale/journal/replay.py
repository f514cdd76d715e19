"""Computes a run again from its journal, with its own policy or another one.

Legend: K updates of a round, in order of arrival; D numbers of a row.
"""

from collections.abc import Iterator, Mapping
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
from unstale.config.metrics import main_metric
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.disk import DamagedError
from unstale.journal.rounds import RecordedRounds
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.metrics.named import in_order
from unstale.policies.registry import find

OF_THIS_MACHINE = frozenset(
    ("device", "threads", "data.path", "data.cache", "data.download", "policy.memory", "policy.memory_folder")
)
"""Keys of the machine: they change no more than bits of a result."""


class RecordedRun:
    """The directory of a run, open for reading while a server may write to it; a context manager.

    Raises UserError if it is not a run directory, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.look(path)
        self.settings = self.directory.settings
        self.database = Database(self.directory.database, read_only=True)

    def check(self) -> None:
        """Raise DamagedError where a row of the database is damaged or contradicts another."""
        with self.database.snapshot():
            self.database.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """A version that differs from the recorded one. recorded, computed: digests, hex."""

    version: int
    recorded: str
    computed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An evaluated version: metrics by name, the main one first, as recorded and with the other policy."""

    version: int
    metrics: Mapping[str, float]
    other_metrics: Mapping[str, float]


def is_of_the_policy(key: str) -> bool:
    """Whether a key changes the result of a policy."""
    return key.startswith("policy.") and key not in OF_THIS_MACHINE


def changed(recorded: Settings, options: Mapping[str, Given]) -> Settings:
    """Settings of a run with options for the machine or another policy. Raises UserError for other keys.

    Settings of the recorded policy are dropped if the options name another one. options: by key, as for `config.load`.
    """
    values = load(None, None, options).model_dump(exclude_unset=True)
    for key, item in options.items():
        if not (is_of_the_policy(key) or key in OF_THIS_MACHINE):
            raise UserError(
                f"{item.origin}: {key} cannot differ from the recorded run, expected a key of policy, or one of "
                f"{', '.join(sorted(OF_THIS_MACHINE))}"
            )
    recorded_values = recorded.model_dump(exclude_defaults=True)
    if values.get("policy", {}).get("name", recorded.policy.name) != recorded.policy.name:
        recorded_values.get("policy", {}).pop("settings", None)
    return Settings(**_merged(recorded_values, values))


class Replay:
    """Computes every version of a run again."""

    def __init__(self, run: RecordedRun, settings: Settings, *, keep_versions: bool = False) -> None:
        """keep_versions: for another learner that needs base models. Raises UserError for damaged or missing data."""
        database = run.database
        self._last_use: dict[int, int] = {}  # the last round with an update of each base version
        self.last = 0  # recorded version
        for row in database.rounds():
            self.last = row.version
            for member in row.members:
                self._last_use[row.version - 1 - member.staleness] = row.version
        if self.last == 0:
            raise UserError(f"the run in {run.directory.path} has no rounds yet; replay it after the first round")
        parts = build.run_components(
            settings, partial(compensator, clock=float), fresh_update=_never_called, keep_versions=keep_versions
        )
        self.workspace, self.learner = parts.workspace, parts.learner
        self._recorded = RecordedRounds(
            database, Segments(run.directory.segments), run.directory.compensations, self.learner.row_numbers
        )
        self._run = run
        self._known = {0}
        self.first = self._start()  # version: 0, or that of the oldest checkpoint if earlier updates were deleted
        self.version = self.first  # the last one that equals the recorded one
        self.updates = 0  # in the rounds so far
        self.parted: Parted | None = None  # the first version that differs

    def rounds(self) -> Iterator[tuple[Tensor, tuple[RoundUpdate, ...]]]:
        """Apply each round; yields its matrix [K, D] float32, read-only, and its updates. Ends early when `parted`."""
        for row in self._run.database.rounds(self.first):
            if row.version > self.last:
                return  # newer than this replay
            if row.version != self.version + 1:
                raise DamagedError(
                    f"{self._run.database.path} has no round of version {self.version + 1}; put it back from a copy"
                )
            updates, members = self._recorded.members(row)
            matrix_KD = self._recorded.matrix(updates)
            made = self._recorded.made(row)
            digest = self.learner.apply_round(matrix_KD, members, made).sent.digest
            if digest != row.digest:
                self.parted = Parted(version=row.version, recorded=row.digest, computed=digest)
                return
            self.version, self.updates = row.version, self.updates + len(updates)
            yield matrix_KD, members
            self._forget(row.version)

    def check_bases(self) -> None:
        """Raise UserError if the base model of an update is not available."""
        missing = {
            version
            for version, until in self._last_use.items()
            if until > self.first > version and version not in self._known
        }
        if missing:
            raise UserError(
                f"version {min(missing)}, a base version of updates, is no longer stored, and this policy needs it; "
                "record a run with --run.keep-updates, or name another policy"
            )

    def _start(self) -> int:
        """Load the oldest intact checkpoint if earlier rounds cannot be computed; returns its version, else 0."""
        rows = self._run.database.checkpoints()
        if not rows or self._has_all_updates(rows[-1].version):
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
            self._known = {row.version, *state["learner"]["versions"]}
            self._forget(row.version)
            return row.version
        assert damaged is not None
        raise damaged

    def _has_all_updates(self, until: int) -> bool:
        """Whether the rounds up to a version can be computed again."""
        database = self._run.database
        return all(
            self._recorded.has_made(row)
            and all(update.location is not None for update in database.updates_of(row.version))
            for row in database.rounds()
            if row.version <= until
        )

    def _forget(self, now: int) -> None:
        """Delete versions that no later round needs."""
        needed = {version for version, until in self._last_use.items() if until > now}
        self.learner.keep_only(needed | {now})


class Comparison:
    """Applies another policy to the recorded rounds of a run.

    The updates stay those of the recorded run, so this is not a run with the other policy. Base models are the recorded
    ones: the clients did train from them.
    """

    def __init__(self, run: RecordedRun, settings: Settings, other: Settings) -> None:
        """other: settings with the other policy. Raises UserError if it cannot be applied to these updates."""
        _check_can_fold(run.settings, other)
        self.main_metric = main_metric(run.settings)
        self.asks_for_bases = build.policy_in_small(other).needs_base_models
        self.replay = replay = Replay(run, settings, keep_versions=self.asks_for_bases)  # with the run's own policy
        self._learner = _Folding(replay, other)
        if self.asks_for_bases:
            replay.check_bases()
        self._evaluations = {row.version: row for row in run.database.evaluations()}
        self._evaluate = build.evaluation(replay.workspace)

    def points(self) -> Iterator[Point]:
        """Both policies at every evaluated version. Ends early when the replay differs."""
        yield from self._point(self.replay.first)
        for matrix_KD, members in self.replay.rounds():
            self._learner.apply_round(matrix_KD, members)
            self._learner.keep_only(())  # base models are those of the replay
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


class _Folding(Learner):
    """A learner whose base models are those of another learner."""

    def __init__(self, replay: Replay, settings: Settings) -> None:
        """Start from the replay's first version, with a new policy."""
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
            self._begin_at(replay.learner)

    @override
    def base(self, version: int) -> Version:
        return self._recorded.base(version)

    def _begin_at(self, recorded: Learner) -> None:
        other, own = recorded.state_dict(), self.state_dict()
        sent = {**other["sent"], "extra_d": own["sent"]["extra_d"]}
        self.load_state_dict(
            {**own, "version": other["version"], "counted": other["counted"], "sent": sent, "versions": {}}
        )


def _never_called(update: StaleUpdate, stale: StaleRound) -> NoReturn:
    """Never called: recorded rounds have the fresh updates that a simulation computed."""
    raise AssertionError(f"asked for the update of client {update.client_id} at version {stale.version}")


def _check_can_fold(recorded: Settings, other: Settings) -> None:
    """Raise UserError if a policy cannot use the updates of a run."""
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


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings merged key by key; `above` takes precedence."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
