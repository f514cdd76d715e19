"""The inversions in progress, and the budget of iterations and seconds.

Legend: d parameters, r reconstructed examples, C classes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import torch

from unstale.compensators.compensator import NO_BASE, WITHOUT_BASE, CompensatorContext, StaleUpdate
from unstale.compensators.inversion import start
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.reconstruction import Reconstruction, WarmStarts
from unstale.compensators.inversion.remote_inversion import RemoteInversions
from unstale.compensators.inversion.settings import EXAMPLES_MAX, InversionSettings
from unstale.compensators.inversion.state import Inversion, Target
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.errors import UserError
from unstale.seeds import Stream, stream

BUDGET, MEMORY, NOT_FINITE = "budget", "memory", "not-finite"
WORKER_LOST = "worker-lost"
TOO_LARGE = (
    "the device's memory is too small to invert even one update at a time, so that such updates are compensated to "
    "first order; lower compensator.settings.images_max"
)
"""The note for `memory`."""


class Budget:
    """Counts iterations and seconds of the run so far, and the time since the current round closed."""

    def __init__(self, settings: InversionSettings, clock: Callable[[], float] | None) -> None:
        """clock: monotonic seconds; None where time is virtual. Raises UserError for seconds without a clock."""
        for key in ("seconds_per_round", "seconds_total"):
            if clock is None and getattr(settings, key) is not None:
                raise UserError(
                    f"compensator.settings.{key} is {getattr(settings, key):g}, but a simulation has no seconds to "
                    f"count, expected null; set {key.replace('seconds', 'iterations')} to bound the work"
                )
        self._settings = settings
        self._clock = clock or (lambda: 0.0)
        self.iterations = 0
        self.seconds = 0.0
        self._closed_s = -inf

    def close_round(self) -> None:
        """A round is closed and waits from now on."""
        self._closed_s = self._clock()

    @property
    def left_s(self) -> float | None:
        """How much longer the closed round may wait; None without a limit."""
        longest_s = self._settings.seconds_per_round
        return None if longest_s is None else max(0.0, longest_s - (self._clock() - self._closed_s))

    @property
    def is_spent(self) -> bool:
        """Whether the run has used a total limit."""
        settings = self._settings
        return (settings.iterations_total is not None and self.iterations >= settings.iterations_total) or (
            settings.seconds_total is not None and self.seconds >= settings.seconds_total
        )

    def room(self, in_round: int, planned: int = 0) -> float:
        """How many more iterations are allowed; infinite without a limit.

        in_round: iterations of the round, done and planned. planned: those that `iterations` does not count yet.
        """
        if self.is_spent:
            return 0
        limits = (
            (self._settings.iterations_per_round, in_round),
            (self._settings.iterations_total, self.iterations + planned),
        )
        return max(0, min(inf if limit is None else limit - used for limit, used in limits))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the duration of the block to `seconds`."""
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds += self._clock() - started_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """Result of the inversions of a round."""

    # finished inversions, by index of the update in the round
    inverted_rows: dict[int, Inversion] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)  # number of updates that were not inverted, by reason
    notes: list[str] = field(default_factory=list)  # about them, for people


class Inversions:
    """Starts inversions, computes their iterations here or on other machines, and ends them with their round.

    Attributes:
        longest: iterations that are worth computing, as far as errors show; None while they show nothing.
        budget: work so far. Remote work counts when it is sent, less the part that turns out to be unnecessary.
    """

    def __init__(self, settings: InversionSettings, context: CompensatorContext) -> None:
        assert context.network is not None
        self._settings = settings
        self._context = context
        self._network = context.network
        self.engine = Engine(context.network, context.steps, settings)
        self.budget = Budget(settings, context.clock)
        self._warm = WarmStarts(settings.warm_bytes_max)
        self._open: dict[tuple[int, int], Inversion] = {}
        self._notes: list[str] = []
        self._remote: RemoteInversions | None = None
        if context.executor is not None:
            self._remote = RemoteInversions(context.executor, context.device, context.clock or (lambda: 0.0))
        self._together = settings.batch_clients
        self.longest: int | None = None

    def begin(self, update: StaleUpdate) -> Inversion:
        """The inversion of an update whose base model is kept; a new one if none is open. Raises OutOfMemoryError."""
        if update.key not in self._open:
            self._open[update.key] = self._new(update)
        return self._open[update.key]

    def work(self) -> bool:
        """Compute one iteration of some open inversions, or send them all; whether more is to do here."""
        if self._remote is not None:
            self._send(self._remote)
            return False
        in_round = sum(one.done for one in self._open.values())
        group = _next_group(self._groups(self._open.values()))
        if not group or self.budget.room(in_round) < len(group):
            return False
        self._iterate(group)
        return True

    def finish(self, updates: Mapping[int, StaleUpdate]) -> Inverted:
        """Invert updates of a round, by index, as far as the budget allows, the most stale first.

        The inversions stay open until `close`.
        """
        result = Inverted()
        chosen = self._begin_all(updates, result)
        inversions = list(chosen.values())
        for one, more in zip(inversions, self._fit(inversions, 0, in_part=True), strict=True):
            if not self._is_remote(one):
                one.iterations = one.done + more
        if self._remote is None:
            self._compute(inversions)
        else:
            self._remote.send(self._groups(inversions))
            self._fetch(self._remote, inversions)
        for index, one in sorted(chosen.items()):
            if (reason := self._failure(one)) is not None:
                result.fallbacks[reason] += 1
            else:
                one.kept[one.done] = one.now
                result.inverted_rows[index] = one
        result.notes.extend(self._notes)
        self._notes.clear()
        return result

    def _begin_all(self, updates: Mapping[int, StaleUpdate], result: Inverted) -> dict[int, Inversion]:
        chosen: dict[int, Inversion] = {}
        for index, update in sorted(updates.items(), key=lambda item: (-item[1].staleness, item[0])):
            if update.kept_base_d is None:
                result.fallbacks[NO_BASE] += 1
                result.notes.append(WITHOUT_BASE)
                continue
            try:
                chosen[index] = self.begin(update)
            except torch.OutOfMemoryError:
                result.fallbacks[MEMORY] += 1
        return chosen

    def _failure(self, one: Inversion) -> str | None:
        """Why an inversion is not used; None for one that is."""
        if one.is_too_large:
            return MEMORY
        if self._remote is not None and self._remote.is_lost(one):
            return WORKER_LOST
        return BUDGET if one.done < self._least(one) else None

    def close(self, updates: Iterable[StaleUpdate]) -> None:
        """End the inversions of these updates, here and on other machines."""
        closed = [self._open.pop(update.key) for update in updates if update.key in self._open]
        self.engine.release(closed)
        if self._remote is not None:
            self.budget.seconds += self._remote.forget(closed)

    def remember(self, client_id: int, reconstruction: Reconstruction) -> None:
        """The next inversion of this client starts from this reconstruction."""
        if self._settings.warm_start:
            self._warm.put(client_id, reconstruction)

    def forget(self) -> None:
        """Delete all reconstructions, after the last inversion of the run."""
        self._warm.clear()

    def state_dict(self) -> dict[str, Any]:
        """Warm starts and the budget's counts. Open inversions start again."""
        return {"warm": self._warm.state_dict(), "iterations": self.budget.iterations, "seconds": self.budget.seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._warm.load_state_dict(state["warm"])
        self.budget.iterations, self.budget.seconds = state["iterations"], state["seconds"]

    def _fit(self, inversions: Sequence[Inversion], in_round: int, *, in_part: bool) -> list[int]:
        """How many more iterations each inversion may have, in order: all that are left, or none.

        Remote iterations count from now on. inversions: in order of priority. in_round: iterations of the round's other
        inversions. in_part: fewer iterations are allowed too, if they are enough to use the inversion.
        """
        allowed, planned = [], 0
        before = [one.iterations if self._is_remote(one) else one.done for one in inversions]
        in_round += sum(before)
        for one, done in zip(inversions, before, strict=True):
            left = max(one.iterations - done, 0)
            more = int(min(left, self.budget.room(in_round, planned)))
            if more < left and not (in_part and done + more >= self._least(one)):
                more = 0
            in_round += more
            if self._remote is None:
                planned += more
            else:
                self.budget.iterations += more
            allowed.append(more)
        return allowed

    def _is_remote(self, one: Inversion) -> bool:
        return self._remote is not None and self._remote.has(one)

    def _groups(self, inversions: Iterable[Inversion]) -> list[list[Inversion]]:
        """Groups to compute together: at most `batch_clients` of one kind, the most stale first.

        Leaves out inversions that are over or remote.
        """
        by_kind: dict[tuple[int, int], list[Inversion]] = {}
        for one in sorted(inversions, key=lambda one: -one.target.staleness):
            if not one.is_over and not self._is_remote(one):
                by_kind.setdefault(one.kind, []).append(one)
        size = self._settings.batch_clients
        return [group[first : first + size] for group in by_kind.values() for first in range(0, len(group), size)]

    def _compute(self, inversions: Sequence[Inversion]) -> None:
        groups = self._groups(inversions)
        while group := _next_group(groups):
            if self.budget.left_s == 0 or self.budget.is_spent:
                break
            self._iterate(group)

    def _send(self, remote: RemoteInversions) -> None:
        """Send all open inversions to other machines, as far as the budget allows."""
        unsent = [one for one in self._open.values() if not one.is_over and not remote.has(one)]
        if unsent:
            in_round = sum(one.iterations for one in self._open.values() if remote.has(one) or one.is_over)
            allowed = self._fit(unsent, in_round, in_part=False)
            remote.send(self._groups(one for one, more in zip(unsent, allowed, strict=True) if more))

    def _fetch(self, remote: RemoteInversions, inversions: Sequence[Inversion]) -> None:
        """Wait for these inversions as long as the round may, and take their results."""
        fetched = remote.fetch(inversions, self.budget.left_s)
        self.budget.iterations -= fetched.saved
        if self._context.clock is not None:  # without a clock, results must not depend on measured seconds
            self.budget.seconds += fetched.seconds
        self._note_memory(len(inversions), fetched.together)
        self._notes += [
            f"an inversion that was computed elsewhere is lost ({why}); such updates are compensated to first order"
            for why in fetched.whys
        ]

    def _least(self, one: Inversion) -> int:
        """How many iterations are enough to use an inversion."""
        return min(self._settings.iterations_min, self._planned(is_warm=one.is_warm))

    def _planned(self, *, is_warm: bool) -> int:
        most = self._settings.iterations
        if self._settings.adapt:
            return most if self.longest is None else min(most, self.longest)
        return max(1, round(self._settings.warm_share * most)) if is_warm else most

    def _new(self, update: StaleUpdate) -> Inversion:
        settings, context, network = self._settings, self._context, self._network
        steps, rate = context.steps.of(update.num_examples, update.local_rate)
        most = min(settings.images_max or EXAMPLES_MAX, EXAMPLES_MAX)
        examples = max(1, min(ceil(settings.images_share * update.num_examples), most))
        target = Target(
            update=network.parts(update.vector_d.to(context.device) * update.local_rate),
            base=network.parts(update.base_d),
            steps=steps,
            rate=rate,
            staleness=update.staleness,
        )
        first = self._warm.get(update.client_id)
        is_warm = first is not None and len(first) == examples
        if first is None or not is_warm:
            first = self._random_start(update, target, examples)
        planned = self._planned(is_warm=is_warm)
        return Inversion(
            target=target,
            iterations=planned,
            now=first.to(context.device),
            loss_checkpoints=loss_checkpoints(planned) if settings.adapt else (),
            is_warm=is_warm,
        )

    def _random_start(self, update: StaleUpdate, target: Target, examples: int) -> Reconstruction:
        network, context = self._network, self._context
        rng = stream(context.seed, Stream.INVERSION, update.client_id, update.task_id)
        inputs_rX, labels_rC = start.drawn(network, examples, rng, context.device)
        bias = network.bias_of_logits
        if self._settings.labels_start == "gradient" and bias is not None:
            # The update over this sum is the mean gradient of its steps.
            slope_C = target.update[bias] / (target.rate * context.steps.reach(target.steps))
            shares_C = start.labels_of(network, target.base, inputs_rX, slope_C)
            labels_rC = start.with_labels(labels_rC, shares_C)
        return Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC)

    def _iterate(self, group: Sequence[Inversion]) -> None:
        """Compute one iteration of each; ends them if the device's memory is too small for one."""
        before = sum(one.done for one in group)
        with self.budget.timed():
            try:
                self.engine.iterate(group)
            except torch.OutOfMemoryError:
                for one in group:
                    one.iterations = one.done  # over; the round reports them as too large
                    one.is_too_large = True
        self.budget.iterations += sum(one.done for one in group) - before
        self._note_memory(len(group), self.engine.together)

    def _note_memory(self, inversions: int, together: int) -> None:
        """Add a note if fewer updates fit into a device's memory than before. inversions: how many there were."""
        if together < self._together:
            self._notes.append(
                f"the device's memory is too small to invert {min(self._together, inversions)} updates together; from "
                f"now on at most {together} are"
            )
            self._together = together


def _next_group(groups: Sequence[Sequence[Inversion]]) -> list[Inversion]:
    """The group with the fewest iterations done, of the first kind that is not over, without finished inversions."""
    open_groups = [rest for group in groups if (rest := [one for one in group if not one.is_over])]
    of_first_kind = [group for group in open_groups if group[0].kind == open_groups[0][0].kind]
    return min(of_first_kind, key=lambda group: group[0].done, default=[])
