"""The inversions that are under way, and how far the budget takes them.

Legend: d parameters, r reconstructed examples, C classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch

from unstale.compensators.compensator import NO_BASE, WITHOUT_BASE, CompensatorContext, StaleUpdate
from unstale.compensators.inversion import start
from unstale.compensators.inversion.budget import Budget
from unstale.compensators.inversion.engine import Engine, Inversion
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.remote_inversion import RemoteInversions
from unstale.compensators.inversion.settings import EXAMPLES_MAX, InversionSettings
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.compensators.inversion.warm_start import WarmStarts
from unstale.compensators.network import Parts
from unstale.seeds import Stream, stream

BUDGET, MEMORY, NOT_FINITE = "budget", "memory", "not-finite"
WORKER_LOST = "worker-lost"
TOO_LARGE = (
    "the device's memory is too small to invert even one update at a time, so that such updates are compensated to "
    "first order; lower compensator.settings.images_max"
)
"""The note for `memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """What became of the updates of a round. found: by place. fallbacks: by reason, how many were not inverted. notes:
    sentences about that."""

    found: dict[int, Inversion] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class Inversions:
    """Begins them, does their iterations or has them done elsewhere, and ends them with their round.

    longest: iterations that are worth doing, as far as is known; None while nothing is. budget: what they have cost so
    far; what is done elsewhere counts from when it is sent there, less what turns out not to be needed.
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
        self._remote = (
            None
            if context.executor is None
            else RemoteInversions(context.executor, context.device, self._now_s)
        )
        self._together = settings.batch_clients
        self.longest: int | None = None

    def begin(self, update: StaleUpdate) -> Inversion:
        """Begin with an update, whose base model is kept; or go on with it. Raises OutOfMemoryError."""
        if update.key not in self._open:
            self._open[update.key] = self._new(update)
        return self._open[update.key]

    def work(self) -> bool:
        """One iteration of some that are open, or what is open is sent elsewhere; whether there is more to do here."""
        if self._remote is not None:
            self._send(self._remote)
            return False
        in_round = sum(one.done for one in self._open.values())
        some = _next_of(self._groups(self._open.values()))
        if not some or self.budget.room(in_round) < len(some):
            return False
        self._iterate(some)
        return True

    def finish(self, wanted: Mapping[int, StaleUpdate]) -> Inverted:
        """What some updates of a round, by place, are reconstructed to be; as far as the budget goes, the most stale
        first. What was begun for them stays until `close`."""
        result = Inverted()
        chosen: dict[int, Inversion] = {}
        for place, update in sorted(wanted.items(), key=lambda item: (-item[1].staleness, item[0])):
            if update.kept_base_d is None:
                result.fallbacks[NO_BASE] += 1
                result.notes.append(WITHOUT_BASE)
                continue
            try:
                chosen[place] = self.begin(update)
            except torch.OutOfMemoryError:
                result.fallbacks[MEMORY] += 1
        those = list(chosen.values())
        for one, more in zip(those, self._fit(those, 0, in_part=True), strict=True):
            if not self._is_away(one):
                one.iterations = one.done + more
        if self._remote is None:
            self._compute(those)
        else:
            self._remote.send(self._groups(those))
            self._fetch(self._remote, those)
        self._sort_out(chosen, result)
        result.notes.extend(self._notes)
        self._notes.clear()
        return result

    def close(self, updates: Iterable[StaleUpdate]) -> None:
        """Leave nothing of what was begun for these, here or elsewhere."""
        closed = [self._open.pop(update.key) for update in updates if update.key in self._open]
        if self._remote is not None:
            self.budget.seconds += self._remote.forget(closed)

    def remember(self, client_id: int, reconstruction: Reconstruction) -> None:
        """Begin the client's next inversion there."""
        if self._settings.warm_start:
            self._warm.put(client_id, reconstruction)

    def forget(self) -> None:
        """Nothing will be inverted any more: keep nothing to begin from."""
        self._warm.clear()

    def state_dict(self) -> dict[str, Any]:
        """What warm starts begin from, and what was spent. What is open is begun again."""
        return {
            "warm": self._warm.state_dict(),
            "iterations": self.budget.iterations,
            "seconds": self.budget.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._warm.load_state_dict(state["warm"])
        self.budget.iterations, self.budget.seconds = state["iterations"], state["seconds"]

    def _fit(self, those: Sequence[Inversion], in_round: int, *, in_part: bool) -> list[int]:
        """How many more iterations each of those may have, in their order: all that are left; or with `in_part` as many
        as the budget allows, if with them it can be used; or none. What is to be done elsewhere counts from now on.
        in_round: how many the round has had."""
        allowed, planned = [], 0
        had = [one.iterations if self._is_away(one) else one.done for one in those]
        in_round += sum(had)
        for one, before in zip(those, had, strict=True):
            left = max(one.iterations - before, 0)
            more = int(min(left, self.budget.room(in_round, planned)))
            if more < left and not (in_part and before + more >= self._least(one)):
                more = 0
            in_round += more
            if self._remote is None:
                planned += more
            else:
                self.budget.iterations += more
            allowed.append(more)
        return allowed

    def _is_away(self, one: Inversion) -> bool:
        return self._remote is not None and self._remote.has(one)

    def _groups(self, those: Iterable[Inversion]) -> list[list[Inversion]]:
        """Groups that are computed together: at most `batch_clients` of one kind, the most stale first. Without those
        that have ended or were sent."""
        by_kind: dict[tuple[int, int], list[Inversion]] = {}
        for one in sorted(those, key=lambda one: -one.staleness):
            if not one.is_over and not self._is_away(one):
                by_kind.setdefault(one.kind, []).append(one)
        most = self._settings.batch_clients
        return [
            some[first : first + most] for some in by_kind.values() for first in range(0, len(some), most)
        ]

    def _compute(self, those: Sequence[Inversion]) -> None:
        groups = self._groups(those)
        while some := _next_of(groups):
            if self.budget.is_out_of_time or self.budget.is_spent:
                break
            self._iterate(some)

    def _send(self, remote: RemoteInversions) -> None:
        """Have what is open computed elsewhere, as far as the budget goes."""
        unsent = [one for one in self._open.values() if not one.is_over and not remote.has(one)]
        if unsent:
            in_round = sum(one.iterations for one in self._open.values() if remote.has(one) or one.is_over)
            fit = self._fit(unsent, in_round, in_part=False)
            remote.send(self._groups(one for one, more in zip(unsent, fit, strict=True) if more))

    def _fetch(self, remote: RemoteInversions, those: Sequence[Inversion]) -> None:
        """Wait for those as long as the round may, and take back what is there."""
        fetched = remote.fetch(those, self.budget.left_s)
        self.budget.iterations -= fetched.saved
        if (
            self._context.clock is not None
        ):  # else nobody counts seconds, and these are not the same every time
            self.budget.seconds += fetched.seconds
        self._note_memory(len(those), fetched.together)
        self._notes += [
            f"an inversion that was computed elsewhere is lost ({why}); such updates are compensated to first order"
            for why in fetched.whys
        ]

    def _sort_out(self, chosen: Mapping[int, Inversion], result: Inverted) -> None:
        for place, one in sorted(chosen.items()):
            if one.is_too_large:
                result.fallbacks[MEMORY] += 1
            elif self._remote is not None and self._remote.is_lost(one):
                result.fallbacks[WORKER_LOST] += 1
            elif one.done < self._least(one):
                result.fallbacks[BUDGET] += 1
            else:
                one.kept[one.done] = one.now
                result.found[place] = one

    def _least(self, one: Inversion) -> int:
        """How many iterations are enough for it to be used."""
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
        vector_d = update.vector_d.to(context.device) * update.local_rate
        base = network.parts(update.base_d)
        kept = self._warm.get(update.client_id)
        is_warm = kept is not None and len(kept) == examples
        if kept is None or not is_warm:
            parts = network.parts(vector_d)
            kept = self._first(update, base, parts, examples, rate * context.steps.reach(steps))
        planned = self._planned(is_warm=is_warm)
        return Inversion(
            base=base,
            update=network.parts(vector_d),
            steps=steps,
            rate=rate,
            iterations=planned,
            loss_checkpoints=loss_checkpoints(planned) if settings.adapt else (),
            now=kept.to(context.device),
            is_warm=is_warm,
            staleness=update.staleness,
        )

    def _first(
        self, update: StaleUpdate, base: Parts, parts: Parts, examples: int, reach: float
    ) -> Reconstruction:
        """Where the first inversion of a client begins. parts: of u. reach: by what u is divided to be the mean
        gradient on the way."""
        network, context = self._network, self._context
        rng = stream(context.seed, Stream.INVERSION, update.client_id, update.task_id)
        inputs_rX, labels_rC = start.drawn(network, examples, rng, context.device)
        bias = network.bias_of_logits
        if self._settings.labels_start == "gradient" and bias is not None:
            shares_C = start.labels_of(network, base, inputs_rX, parts[bias] / reach)
            labels_rC = start.with_labels(labels_rC, shares_C)
        return Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC)

    def _iterate(self, some: Sequence[Inversion]) -> None:
        """One iteration of each; where the device's memory is too small for one, they are over."""
        before = sum(one.done for one in some)
        with self.budget.timed():
            try:
                self.engine.iterate(some)
            except torch.OutOfMemoryError:
                for one in some:
                    one.iterations = one.done  # the round says what becomes of them
                    one.is_too_large = True
        self.budget.iterations += sum(one.done for one in some) - before
        self._note_memory(len(some), self.engine.together)

    def _now_s(self) -> float:
        return 0.0 if self._context.clock is None else self._context.clock()

    def _note_memory(self, wanted: int, together: int) -> None:
        """Say when fewer updates fit into a device's memory than did. wanted: how many there were to invert."""
        if together < self._together:
            self._notes.append(
                f"the device's memory is too small to invert {min(self._together, wanted)} updates together; from now "
                f"on at most {together} are"
            )
            self._together = together


def _next_of(groups: Sequence[Sequence[Inversion]]) -> list[Inversion]:
    """Those that the next iteration is of: of the groups of the first kind that is not over, the one that is least
    far."""
    waiting = [some for group in groups if (some := [one for one in group if not one.is_over])]
    of_one_kind = [some for some in waiting if some[0].kind == waiting[0][0].kind]
    return min(of_one_kind, key=lambda some: some[0].done, default=[])
