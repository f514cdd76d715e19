"""A run computed again from what its journal holds, under the policy that it had or under another one.

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
from unstale.policies.registry import find

OF_THIS_MACHINE = frozenset(
    ("device", "threads", "data.path", "data.cache", "data.download", "policy.memory", "policy.memory_folder")
)
"""Keys that say where and with what a run is computed again. They do not change what is computed, but for its bits."""


class RecordedRun:
    """The directory of a run, open for reading; a server may write to it meanwhile. Left as a context, it is closed.

    Raises UserError when it is none, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.look(path)
        self.settings = self.directory.settings
        self.database = Database(self.directory.database, read_only=True)

    def check(self) -> None:
        """Read every row of the database, and raise DamagedError where one is damaged or contradicts another."""
        with self.database.snapshot():
            self.database.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """The version that did not come out as it was. recorded, computed: digests, hex."""

    version: int
    recorded: str
    computed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A version that was measured. accuracy in [0, 1] and loss, nats: as recorded, and of the other policy's model."""

    version: int
    accuracy: float
    loss: float
    other_accuracy: float
    other_loss: float


def is_of_the_policy(key: str) -> bool:
    """Whether a key says what a policy makes of updates."""
    return key.startswith("policy.") and key not in OF_THIS_MACHINE


def changed(recorded: Settings, options: Mapping[str, Given]) -> Settings:
    """A run's settings with those of this machine, or of another policy, in their place.

    The settings of a policy by name go with it; its other keys stay. options: by key, as for `config.load`. Raises
    UserError for a key that belongs to what was recorded.
    """
    given = load(None, None, options).model_dump(exclude_unset=True)
    for key, item in options.items():
        if not (is_of_the_policy(key) or key in OF_THIS_MACHINE):
            raise UserError(
                f"{item.origin}: {key} is as it was when the run was recorded, expected a key of policy, or one of "
                f"{', '.join(sorted(OF_THIS_MACHINE))}"
            )
    kept = recorded.model_dump(exclude_defaults=True)
    if given.get("policy", {}).get("name", recorded.policy.name) != recorded.policy.name:
        kept.get("policy", {}).pop("settings", None)
    return Settings(**_merged(kept, given))


class Replay:
    """Makes every version of a run again.

    first: the version that it begins with: 0, or the oldest of a checkpoint where updates were let go since. version:
    the last that came out as it was. updates: in the rounds so far. parted: the version that came out otherwise.
    settings: of the run, and of this machine. keep_versions: for another learner, which asks for the models that
    updates were computed from. Raises UserError for what is damaged or missing.
    """

    def __init__(self, run: RecordedRun, settings: Settings, *, keep_versions: bool = False) -> None:
        database = run.database
        self._last_use, self.last = _last_uses(database)
        if self.last == 0:
            raise UserError(
                f"the run in {run.directory.path} has no rounds yet; replay it when a version was made"
            )
        parts = build.run_components(
            settings, partial(compensator, clock=float, fresh_update=_not_here), keep_versions=keep_versions
        )
        self.device, self.dataset, self.model, self.learner = (
            parts.device,
            parts.dataset,
            parts.model,
            parts.learner,
        )
        self._recorded = RecordedRounds(
            database,
            Segments(run.directory.segments),
            run.directory.compensations,
            self.learner.row_numbers,
        )
        self._run = run
        self._known = {0}
        self.first = self.version = self._start()
        self.updates = 0
        self.parted: Parted | None = None

    def rounds(self) -> Iterator[tuple[Tensor, tuple[RoundUpdate, ...]]]:
        """Apply each round, and give its matrix [K, D] float32, to be read only, and what the learner was told.

        Ends behind the last, or when `parted`."""
        for row in self._run.database.rounds(self.first):
            if row.version > self.last:
                return  # made since
            if row.version != self.version + 1:
                raise DamagedError(
                    f"{self._run.database.path} does not say how version {self.version + 1} was made"
                )
            updates, told = self._recorded.members(row)
            matrix_KD = self._recorded.matrix(updates)
            made = self._recorded.made(row)
            digest = self.learner.apply_round(matrix_KD, told, made).sent.digest
            if digest != row.digest:
                self.parted = Parted(version=row.version, recorded=row.digest, computed=digest)
                return
            self.version, self.updates = row.version, self.updates + len(updates)
            yield matrix_KD, told
            self._forget(row.version)

    def check_bases(self) -> None:
        """Raise UserError unless there is every model that an update was computed from."""
        missing = {
            version
            for version, until in self._last_use.items()
            if until > self.first > version and version not in self._known
        }
        if missing:
            raise UserError(
                f"version {min(missing)}, which updates were computed from, is no longer kept, and this policy asks "
                "for it; record a run with --run.keep-updates, or name another policy"
            )

    def _start(self) -> int:
        """Load the oldest checkpoint if rounds before it cannot be made any more; its version, else 0."""
        rows = self._run.database.checkpoints()
        if not rows or self._has_all_updates(rows[-1].version):
            return 0
        damaged: DamagedError | None = None
        for row in reversed(rows):
            try:
                state = checkpoints.read_at(self._run.directory.checkpoints / row.file, row.seq)
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
        """Whether the rounds up to this version can be made again."""
        database = self._run.database
        return all(
            self._recorded.has_made(row)
            and all(update.place is not None for update in database.updates_of(row.version))
            for row in database.rounds()
            if row.version <= until
        )

    def _forget(self, now: int) -> None:
        """Let go of versions that no later round asks for."""
        needed = {version for version, until in self._last_use.items() if until > now}
        self.learner.keep_only(needed | {now})


class Comparison:
    """Folds the updates of a run under another policy, beside the policy that they were made for.

    The same rounds of the same updates: what the clients trained on stays as it was, so this is not the run that there
    would have been. Where a policy asks for the model that an update was computed from, that is the recorded one: the
    client did start there, and ended where the update says.

    other: the settings of the run with another policy. replay: of the run itself, round by round. asks_for_bases:
    whether the other policy is one that asks for those models. Raises UserError where it cannot fold these updates.
    """

    def __init__(self, run: RecordedRun, settings: Settings, other: Settings) -> None:
        _check_can_fold(run.settings, other)
        self.asks_for_bases = build.policy_in_small(other).needs_base_models
        self.replay = Replay(run, settings, keep_versions=self.asks_for_bases)
        replay = self.replay
        self._learner = _Folding(replay, other)
        if self.asks_for_bases:
            replay.check_bases()
        self._measured = {row.version: row for row in run.database.evaluations()}
        self._evaluate = build.evaluation(settings, replay.model, replay.dataset, replay.device)

    def points(self) -> Iterator[Point]:
        """Both policies at every version that was measured when it was made. Ends early when the replay parts."""
        yield from self._point(self.replay.first)
        for matrix_KD, told in self.replay.rounds():
            self._learner.apply_round(matrix_KD, told)
            self._learner.keep_only(())  # its own; those that it is asked for are the other's
            yield from self._point(self.replay.version)

    def _point(self, version: int) -> Iterator[Point]:
        row = self._measured.get(version)
        if row is not None:
            other = self._evaluate(self._learner.sent)
            yield Point(
                version=version,
                accuracy=row.accuracy,
                loss=row.loss,
                other_accuracy=other.accuracy,
                other_loss=other.loss,
            )


class _Folding(Learner):
    """A learner of its own policy, whose updates were computed from the versions of another learner."""

    def __init__(self, replay: Replay, settings: Settings) -> None:
        """Start where the replay does, with a policy in its first state."""
        model = replay.model
        super().__init__(
            model.parameters_d,
            build.policy(settings, model.dimension, replay.device),
            learning_rate=build.schedule(settings).rate,
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
        was = recorded.state_dict()
        mine = self.state_dict()
        sent = {**was["sent"], "extra_d": mine["sent"]["extra_d"]}
        self.load_state_dict(
            {**mine, "version": was["version"], "counted": was["counted"], "sent": sent, "versions": {}}
        )


def _not_here(update: StaleUpdate, stale: StaleRound) -> NoReturn:
    """What a simulation knew of a client's true update is kept with its round, and not asked for again."""
    raise AssertionError(f"asked for the update of client {update.client_id} at version {stale.version}")


def _last_uses(database: Database) -> tuple[dict[int, int], int]:
    """By version, the last round with an update that was computed from it; and the last round that there is."""
    last_use: dict[int, int] = {}
    last = 0
    for row in database.rounds():
        last = row.version
        for member in row.members:
            last_use[row.version - 1 - member.staleness] = row.version
    return last_use, last


def _check_can_fold(recorded: Settings, other: Settings) -> None:
    """Raise UserError where updates hold something else than a policy takes."""
    was, now = recorded.policy.name, other.policy.name
    trained = recorded.training.name
    needed = find(now).training
    if needed not in (None, trained):
        raise UserError(
            f"policy {now!r} is for clients that train with {needed!r}, and those of this run trained with "
            f"{trained!r}; name another policy"
        )
    if find(was).sends_extra and now != was:
        raise UserError(
            f"the clients of this run trained with {trained!r}, from a second vector that policy {was!r} sent them, "
            f"which policy {now!r} cannot fold; replay a run of other training"
        )


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings in one another, of which `above` wins key by key."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        both[key] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both
