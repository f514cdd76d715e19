"""Gradient inversion: what made a stale update is reconstructed, and trained on again from the current model.

Legend: d parameters, r reconstructed examples.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unstale.compensators.compensator import (
    UNCHANGED,
    Compensated,
    Compensator,
    CompensatorContext,
    Made,
    MeasuredError,
    Outcome,
    StaleRound,
    StaleUpdate,
)
from unstale.compensators.errors import Matches, Recent, Switch, Waiting, is_finite, measured
from unstale.compensators.first_order import FirstOrder
from unstale.compensators.inversion.engine import Inversion
from unstale.compensators.inversion.inversions import MEMORY, NOT_FINITE, TOO_LARGE, Inversions
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.stopping import (
    RESIDUALS,
    TRUSTS,
    Choice,
    Trial,
    Trials,
    as_rows,
    from_rows,
    loss_checkpoints,
    nearest,
    next_loss_checkpoint,
)
from unstale.errors import UserError

INVERSION, FIRST_ORDER = "gradient-inversion", "first-order"
NO_ROOM = (
    "there is no room for more estimates that wait for their client's next update, so that not all are held against "
    "it; raise compensator.settings.matches_bytes_max to learn from all"
)
UNTOLD = "the device's memory is too small to hold estimates against some later updates, which tell nothing"
"""Notes."""


class GradientInversion(Compensator[InversionSettings]):
    """A stale update is replaced by what its reconstructed data would make of the current model.

        D_rec = argmin |LU(w_b; D_rec) - u|_1
        u^ = (1 - trust) u + trust (LU(w_t; D_rec) + residual (u - LU(w_b; D_rec)))

    until the estimates turn out worse than the stale updates are. What does not fit the budget is compensated to first
    order.
    `residual` and `trust` are ours, 0 and 1 in the paper.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    Settings = InversionSettings
    source = "Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion"
    memory = (
        "live versions; reconstructed examples of each client and estimates that wait, on the host, bounded"
    )
    inverts = True
    is_recorded = True

    def __init__(self, settings: InversionSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        if context.steps.unknown is not None:
            raise UserError(
                f"training.name is {context.steps.unknown!r}, whose updates depend on more than model and data, "
                "expected sgd, gradient or fedprox for gradient inversion; use compensator.name first-order"
            )
        self.first_order = FirstOrder(settings, context)
        self.recent = Recent(settings.window)
        self._switch = Switch(settings.smooth_rounds)
        self._trials = Trials(settings.window)
        self._loss_checkpoints = loss_checkpoints(settings.iterations) if settings.adapt else ()
        first = self._loss_checkpoints[0] if settings.adapt else settings.iterations
        self._choice = self._first_choice = Choice(first, settings.residual, settings.trust)
        self._matches = Matches(settings.matches_bytes_max)
        if context.network is None:
            return  # only the settings are looked at
        if settings.switch == "oracle" and context.fresh_update is None:
            raise UserError(
                "compensator.settings.switch is 'oracle', but only a simulation knows true errors, expected matched or "
                "never"
            )
        self._network = context.network
        self.inversions = Inversions(settings, context)

    @property
    def known(self) -> Trial | None:
        """How what is used now has done lately, or would have; None while little is known. True errors are of what was
        used alone."""
        trial = None if self.settings.switch == "oracle" else self._trials.of(self._choice)
        recent = self.recent
        if trial is not None or not (recent.is_full(INVERSION) and recent.is_full(UNCHANGED)):
            return trial
        return Trial(*recent.mean(INVERSION), *recent.mean(UNCHANGED))

    # What subclasses decide.

    def helps(self) -> bool:
        """Whether the estimates are better than what they replace, as far as the errors tell."""
        known = self.known
        return known is None or known.l1 <= self.settings.margin * known.stale_l1

    def lesser(self, *, has_ended: bool) -> str:
        """What becomes of a stale update that is not inverted. has_ended: because inversion has, for good."""
        return UNCHANGED if has_ended else FIRST_ORDER

    # Before a round closes.

    @property
    def begins_early(self) -> bool:
        return self.settings.start == "arrival"

    def begin(self, update: StaleUpdate) -> None:
        if update.kept_base_d is not None and self._share(update.base_version + update.staleness) > 0:
            # Where memory is too small now, its round tries again, and says so.
            with suppress(torch.OutOfMemoryError):
                self.inversions.begin(update)

    def work(self) -> bool:
        return self.inversions.work()

    # A round.

    def make(self, stale: StaleRound) -> Made:
        budget = self.inversions.budget
        budget.close_round()
        with budget.timed():
            errors, tried, notes = self._matched(stale)
        if self.settings.switch == "oracle":
            errors = []
        wanted: dict[int, StaleUpdate] = {}
        if self._share(stale.version) > 0:
            wanted = {place: update for place, update in enumerate(stale.updates) if update.staleness > 0}
        inverted = self.inversions.finish(wanted)
        self.inversions.close(stale.updates)
        estimates: dict[int, dict[str, Any]] = {}
        with budget.timed():
            for place, one in inverted.found.items():
                try:
                    estimate = self._made_of(wanted[place], stale.model_d, one)
                except torch.OutOfMemoryError:
                    inverted.fallbacks[MEMORY] += 1
                    continue
                if not bool(estimate["estimate"].isfinite().all()):
                    inverted.fallbacks[NOT_FINITE] += 1
                    continue
                estimates[place] = estimate
        if self.settings.switch == "oracle":
            for place, estimate in estimates.items():
                errors += self._true_errors(wanted[place], estimate["estimate"], stale)
        if inverted.fallbacks[MEMORY]:
            notes = [*notes, TOO_LARGE]
        return {
            "estimates": estimates,
            "trials": [as_rows(one) for one in tried],
            "errors": [[one.client_id, one.method, one.l1, one.cosine, one.staleness] for one in errors],
            "fallbacks": dict(inverted.fallbacks),
            "notes": [*inverted.notes, *notes],
            "spent": [budget.iterations, budget.seconds],
        }

    def take(self, stale: StaleRound, made: Made) -> Outcome:
        budget = self.inversions.budget
        budget.iterations, budget.seconds = made["spent"]
        errors = [
            MeasuredError(client_id=client_id, method=method, l1=l1, cosine=cosine, staleness=staleness)
            for client_id, method, l1, cosine, staleness in made["errors"]
        ]
        vectors, updates = self._replaced(stale, made["estimates"])
        self._matches.settle(stale.updates, stale.version)
        notes = list(made["notes"])
        remembered = [
            self._remember(stale, stale.updates[place], one) for place, one in made["estimates"].items()
        ]
        if not all(remembered):
            notes.append(NO_ROOM)
        for error in errors:
            self.recent.add(error)
        for rows in made["trials"]:
            self._trials.add(from_rows(rows))
        self._choose()
        may_end = self.settings.switch != "never" and self._switch.off_at is None
        if may_end and errors and not self.helps():
            self._switch.off_at = stale.version + 1
            notes.append(self._why_ended(stale.version + 1))
        if self._share(stale.version + 1) == 0:
            self._matches.clear()
            self.inversions.forget()
        return Outcome(
            vectors=vectors,
            counts_as_fresh=made["estimates"].keys() if self.settings.counts_as_fresh else (),
            updates=updates,
            errors=errors,
            fallbacks=made["fallbacks"],
            notes=notes,
        )

    def _share(self, version: int) -> float:
        """a: what part of the result an estimate is in the round that makes the next version out of this one."""
        last = self.settings.last_round
        return 0.0 if last is not None and version >= last else self._switch.share(version)

    def _made_of(self, update: StaleUpdate, model_d: Tensor, one: Inversion) -> dict[str, Any]:
        """What is used of an inversion, and what is to be kept of it."""
        mark = nearest(one.kept, self._choice.iterations)
        choice = self._choice._replace(iterations=mark)
        inverted_d = self.estimates(update, model_d, one.kept[mark], one)[choice.residual]
        kept = {at: each for at, each in one.kept.items() if at == mark or at in self._loss_checkpoints}
        return {
            "estimate": _between(update.vector_d.to(inverted_d.device), inverted_d, choice.trust),
            "choice": list(choice),
            "kept": {at: each.on_host().state_dict() for at, each in kept.items()},
            "steps": one.steps,
            "rate": one.rate,
            "iterations": one.done,
            "disparity": float(one.disparity),
        }

    def estimates(
        self, update: StaleUpdate, model_d: Tensor, reconstruction: Reconstruction, like: Inversion | Waiting
    ) -> dict[float, Tensor]:
        """What an update would be at a model, by the share of the unexplained that is added: pseudo-gradients [d].
        like: says how its client trains."""
        again = self.inversions.engine.local_update
        rate, parts = update.local_rate, self._network.parts
        there_d = again(reconstruction, parts(model_d), like.steps, like.rate) / rate
        residuals = {*RESIDUALS, self.settings.residual} if self.settings.adapt else {self.settings.residual}
        if residuals == {0.0}:
            return {0.0: there_d}
        here_d = again(reconstruction, parts(update.base_d), like.steps, like.rate) / rate
        unexplained_d = update.vector_d.to(model_d.device) - here_d
        return {residual: there_d + residual * unexplained_d for residual in residuals}

    def _choose(self) -> None:
        """Take what has turned out best, and do not look much further."""
        best = self._trials.best() if self.settings.adapt else None
        self._choice = best or self._first_choice
        self.inversions.longest = None if best is None else next_loss_checkpoint(best.iterations)

    def _replaced(
        self, stale: StaleRound, estimates: Mapping[int, Mapping[str, Any]]
    ) -> tuple[dict[int, Tensor], list[Compensated]]:
        share = self._share(stale.version)
        method = self.lesser(has_ended=share == 0)
        vectors: dict[int, Tensor] = {}
        updates = []
        for place, update in enumerate(stale.updates):
            self.first_order.note(update)
            what = Compensated()
            if place in estimates:
                one = estimates[place]
                estimate_d = one["estimate"].to(update.vector_d.device)
                vectors[place] = _between(update.vector_d, estimate_d, share)
                what = Compensated(
                    method=INVERSION,
                    share=share * Choice(*one["choice"]).trust,
                    iterations=one["iterations"],
                    disparity=one["disparity"],
                )
            elif update.staleness > 0 and method == FIRST_ORDER and update.kept_base_d is not None:
                vectors[place] = self.first_order.estimate(update, stale.model_d)
                what = Compensated(method=FIRST_ORDER, share=1.0)
            updates.append(what)
        return vectors, updates

    # What is learned from it.

    def _remember(self, stale: StaleRound, update: StaleUpdate, one: Mapping[str, Any]) -> bool:
        """Keep what was reconstructed, and what tells how good it was once the client's next update is there; whether
        there was room for that."""
        choice = Choice(*one["choice"])
        kept = {mark: Reconstruction.from_state(state) for mark, state in one["kept"].items()}
        self.inversions.remember(update.client_id, kept[choice.iterations])
        return self._matches.add(
            Waiting(
                version=stale.version,
                stale=update,
                kept=kept,
                choice=choice,
                steps=one["steps"],
                rate=one["rate"],
            )
        )

    def _matched(
        self, stale: StaleRound
    ) -> tuple[list[MeasuredError], list[dict[Choice, Trial]], Sequence[str]]:
        """What the updates of a round say about estimates: errors, trials of each update, and notes. Of several updates
        of a client the first that can tell about an estimate does."""
        errors: list[MeasuredError] = []
        tried: list[dict[Choice, Trial]] = []
        notes: Sequence[str] = ()
        told: dict[int, int] = {}
        for update in stale.updates:
            waiting = self._matches.of(update)
            if waiting is None or update.kept_base_d is None:
                continue
            if waiting.version <= told.get(update.client_id, -1):
                continue
            told[update.client_id] = update.base_version
            try:
                of_update, choices = self._told_by(update, waiting)
            except torch.OutOfMemoryError:
                notes = (UNTOLD,)
                continue
            errors += of_update
            tried.append(choices)
        return errors, tried, notes

    def _told_by(
        self, update: StaleUpdate, waiting: Waiting
    ) -> tuple[list[MeasuredError], dict[Choice, Trial]]:
        """What each method would have made, of what was known before, of the model that an update was made from: the
        errors of what was used, none where one is not finite; and those of each choice."""
        device = update.base_d.device
        before = replace(
            waiting.stale,
            vector_d=waiting.stale.vector_d.to(device),
            kept_base_d=waiting.stale.base_d.to(device),
        )
        bridged = update.base_version - before.base_version
        unchanged = measured(update, UNCHANGED, before.vector_d, bridged)
        first_order_d = self.first_order.estimate(before, update.base_d)
        errors = [unchanged, measured(update, FIRST_ORDER, first_order_d, bridged)]
        tried: dict[Choice, Trial] = {}
        is_comparable = unchanged.l1 > 0 and is_finite(unchanged)
        for mark, kept in waiting.kept.items():
            inverted = self.estimates(before, update.base_d, kept, waiting)
            is_mark = mark in self._loss_checkpoints
            for choice in self._choices(mark) if is_mark else [waiting.choice]:
                estimate_d = _between(before.vector_d, inverted[choice.residual], choice.trust)
                error = measured(update, INVERSION, estimate_d, bridged)
                if choice == waiting.choice:
                    errors.append(error)
                if is_mark and is_comparable and is_finite(error):
                    tried[choice] = Trial(error.l1, error.cosine, unchanged.l1, unchanged.cosine)
        return (errors if all(map(is_finite, errors)) else []), tried

    def _choices(self, mark: int) -> list[Choice]:
        """Those that can be made of a reconstruction after so many iterations."""
        residuals = sorted({*RESIDUALS, self._first_choice.residual})
        trusts = sorted({*TRUSTS, self._first_choice.trust})
        return [Choice(mark, residual, trust) for residual in residuals for trust in trusts]

    def _true_errors(self, update: StaleUpdate, estimate_d: Tensor, stale: StaleRound) -> list[MeasuredError]:
        """The errors against the update that the client makes of the current model, in simulation."""
        assert self.context.fresh_update is not None
        true = replace(update, vector_d=self.context.fresh_update(update, stale))
        first_order_d = self.first_order.estimate(update, stale.model_d)
        errors = [
            measured(true, UNCHANGED, update.vector_d, update.staleness),
            measured(true, FIRST_ORDER, first_order_d, update.staleness),
            measured(true, INVERSION, estimate_d, update.staleness),
        ]
        return errors if all(map(is_finite, errors)) else []

    def _why_ended(self, version: int) -> str:
        known = self.known
        assert known is not None
        return (
            f"gradient inversion ends at version {version}: over the last {self.settings.window} updates its estimates "
            f"were wrong by {known.l1:.3g} (L1; {known.cosine:.3f} by cosine), the stale updates by "
            f"{known.stale_l1:.3g} ({known.stale_cosine:.3f})"
        )

    # State.

    def state_dict(self) -> dict[str, Any]:
        return {
            "inversions": self.inversions.state_dict(),
            "first_order": self.first_order.state_dict(),
            "matches": self._matches.state_dict(),
            "recent": self.recent.state_dict(),
            "trials": self._trials.state_dict(),
            "off_at": self._switch.off_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inversions.load_state_dict(state["inversions"])
        self.first_order.load_state_dict(state["first_order"])
        self._matches.load_state_dict(state["matches"])
        self.recent.load_state_dict(state["recent"])
        self._switch.off_at = state["off_at"]
        self._trials.load_state_dict(state["trials"])
        self._choose()


def _between(vector_d: Tensor, other_d: Tensor, share: float) -> Tensor:
    """The part of the way from one to the other; the other itself, to the bit, for 1."""
    return other_d if share == 1 else torch.lerp(vector_d, other_d, share)
