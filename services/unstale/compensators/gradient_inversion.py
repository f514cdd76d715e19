"""The compensator `gradient-inversion`: trains the current model on reconstructed data of a stale update.

Legend: d parameters, r reconstructed examples.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
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
from unstale.compensators.errors import Matches, Recent, Waiting, is_finite, measured, share_after_switch
from unstale.compensators.first_order import FirstOrder
from unstale.compensators.inversion.inversions import MEMORY, NOT_FINITE, TOO_LARGE, Inversions, Inverted
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion
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
)
from unstale.errors import UserError

INVERSION, FIRST_ORDER = "gradient-inversion", "first-order"
NO_ROOM = (
    "there is no memory for more estimates that wait for their client's next update, so not all are compared with it; "
    "raise compensator.settings.matches_bytes_max to learn from all"
)
UNMEASURED = "the device's memory is too small to compare estimates with some later updates, which are ignored"
"""Notes."""


class GradientInversion(Compensator[InversionSettings]):
    """Replaces a stale update by the update that its reconstructed data make of the current model.

        D_rec = argmin |LU(w_b; D_rec) - u|_1
        u^ = (1 - trust) u + trust (LU(w_t; D_rec) + residual (u - LU(w_b; D_rec)))

    until the estimates are worse than the stale updates. Updates beyond the budget are compensated to first order.
    `residual` and `trust` are ours, 0 and 1 in the paper.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    Settings = InversionSettings
    memory = "live versions; reconstructed examples of each client and estimates that wait, on the host, bounded"
    inverts = True
    is_recorded = True

    def __init__(self, settings: InversionSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        context.steps.check_known("gradient inversion; use compensator.name first-order")
        self.first_order = FirstOrder(settings, context)
        self.recent = Recent(settings.window)
        self._off_at: int | None = None  # version from which the stale updates replace estimates
        self._trials = Trials(settings.window)
        self._loss_checkpoints = loss_checkpoints(settings.iterations) if settings.adapt else ()
        first = self._loss_checkpoints[0] if settings.adapt else settings.iterations
        self._choice = self._first_choice = Choice(first, settings.residual, settings.trust)
        self._matches = Matches(settings.matches_bytes_max)
        if context.network is None:
            return  # only the settings are checked
        if settings.switch == "oracle" and context.fresh_update is None:
            raise UserError(
                "compensator.settings.switch is 'oracle', but only a simulation knows true errors, expected matched or "
                "never"
            )
        self._network = context.network
        self.inversions = Inversions(settings, context)

    @property
    def known(self) -> Trial | None:
        """The mean trial of the current choice; None while too few errors are known.

        True errors, in a simulation, exist only of the estimates that were used.
        """
        trial = None if self.settings.switch == "oracle" else self._trials.of(self._choice)
        inverted, unchanged = self.recent.mean(INVERSION), self.recent.mean(UNCHANGED)
        if trial is not None or inverted is None or unchanged is None:
            return trial
        return Trial(*inverted, *unchanged)

    # Subclasses override these two.

    def helps(self) -> bool:
        """Whether the estimates are better than the stale updates, or nothing is known yet."""
        known = self.known
        return known is None or known.l1 <= self.settings.margin * known.stale_l1

    def lesser(self, *, has_ended: bool) -> str:
        """The method for a stale update that is not inverted. has_ended: inversion has ended for good."""
        return UNCHANGED if has_ended else FIRST_ORDER

    # Before a round closes.

    @property
    def begins_early(self) -> bool:
        return self.settings.start == "arrival"

    def begin(self, update: StaleUpdate) -> None:
        if update.kept_base_d is not None and self._share(update.base_version + update.staleness) > 0:
            # If memory is too small, `make` tries again and adds a note.
            with suppress(torch.OutOfMemoryError):
                self.inversions.begin(update)

    def work(self) -> bool:
        return self.inversions.work()

    # A round.

    def make(self, stale: StaleRound) -> Made:
        budget = self.inversions.budget
        budget.close_round()
        with budget.timed():
            errors, trials, notes = self._measure(stale)
        updates: dict[int, StaleUpdate] = {}
        if self._share(stale.version) > 0:
            updates = {index: update for index, update in enumerate(stale.updates) if update.staleness > 0}
        inverted = self.inversions.finish(updates)
        self.inversions.close(stale.updates)
        with budget.timed():
            estimates = self._estimate_all(stale, inverted)
        if self.settings.switch == "oracle":
            errors = [error for index, one in estimates.items() for error in self._true_errors(stale, index, one)]
        if inverted.fallbacks[MEMORY]:
            notes.append(TOO_LARGE)
        return {
            "estimates": estimates,
            "trials": [as_rows(of_update) for of_update in trials],
            "errors": [list(astuple(error)) for error in errors],
            "fallbacks": dict(inverted.fallbacks),
            "notes": [*inverted.notes, *notes],
            "spent": [budget.iterations, budget.seconds],
        }

    def take(self, stale: StaleRound, made: Made) -> Outcome:
        budget = self.inversions.budget
        budget.iterations, budget.seconds = made["spent"]
        errors = [MeasuredError(*error) for error in made["errors"]]
        vectors, updates = self._replaced(stale, made["estimates"])
        return Outcome(
            vectors=vectors,
            counts_as_fresh=made["estimates"].keys() if self.settings.counts_as_fresh else (),
            updates=updates,
            errors=errors,
            fallbacks=made["fallbacks"],
            notes=[*made["notes"], *self._learn(stale, made, errors)],
            metrics={"inverted_share": len(made["estimates"]) / max(len(updates), 1)},
        )

    def _share(self, version: int) -> float:
        """a: weight of an estimate in the round that makes the next version from this one."""
        last = self.settings.last_round
        if last is not None and version >= last:
            return 0.0
        return share_after_switch(version, self._off_at, self.settings.smooth_rounds)

    def _estimate_all(self, stale: StaleRound, inverted: Inverted) -> dict[int, dict[str, Any]]:
        """The estimates of inverted updates that are finite and fit into memory, by index. Counts the others."""
        estimates = {}
        for index, one in inverted.inverted_rows.items():
            try:
                estimate = self._estimate(stale.updates[index], stale.model_d, one)
            except torch.OutOfMemoryError:
                inverted.fallbacks[MEMORY] += 1
                continue
            if bool(estimate["estimate"].isfinite().all()):
                estimates[index] = estimate
            else:
                inverted.fallbacks[NOT_FINITE] += 1
        return estimates

    def _estimate(self, update: StaleUpdate, model_d: Tensor, one: Inversion) -> dict[str, Any]:
        """The estimate from an inversion, and the reconstructions to keep."""
        checkpoint = nearest(one.kept, self._choice.iterations)
        choice = self._choice._replace(iterations=checkpoint)
        inverted_d = self.estimates(update, model_d, one.kept[checkpoint])[choice.residual]
        kept = {at: each for at, each in one.kept.items() if at == checkpoint or at in self._loss_checkpoints}
        return {
            "estimate": _between(update.vector_d.to(inverted_d.device), inverted_d, choice.trust),
            "choice": list(choice),
            "kept": {at: each.on_host().state_dict() for at, each in kept.items()},
            "steps": one.target.steps,
            "rate": one.target.rate,
            "iterations": one.done,
            "disparity": float(one.disparity),
        }

    def estimates(self, update: StaleUpdate, model_d: Tensor, reconstruction: Reconstruction) -> dict[float, Tensor]:
        """The update at another model, by residual: pseudo-gradients [d]."""
        local_update, parts = self.inversions.engine.local_update, self._network.parts
        steps, rate = self.context.steps.of(update.num_examples, update.local_rate)
        there_d = local_update(reconstruction, parts(model_d), steps, rate) / update.local_rate
        residuals = {*RESIDUALS, self.settings.residual} if self.settings.adapt else {self.settings.residual}
        if residuals == {0.0}:
            return {0.0: there_d}
        here_d = local_update(reconstruction, parts(update.base_d), steps, rate) / update.local_rate
        unexplained_d = update.vector_d.to(model_d.device) - here_d
        return {residual: there_d + residual * unexplained_d for residual in residuals}

    def _replaced(
        self, stale: StaleRound, estimates: Mapping[int, Mapping[str, Any]]
    ) -> tuple[dict[int, Tensor], list[Compensated]]:
        share = self._share(stale.version)
        method = self.lesser(has_ended=share == 0)
        vectors: dict[int, Tensor] = {}
        updates = []
        for index, update in enumerate(stale.updates):
            self.first_order.note(update)
            compensated = Compensated()
            if index in estimates:
                one = estimates[index]
                estimate_d = one["estimate"].to(update.vector_d.device)
                vectors[index] = _between(update.vector_d, estimate_d, share)
                used = share * Choice(*one["choice"]).trust
                compensated = Compensated(
                    method=INVERSION, share=used, iterations=one["iterations"], disparity=one["disparity"]
                )
            elif update.staleness > 0 and method == FIRST_ORDER and update.kept_base_d is not None:
                vectors[index] = self.first_order.estimate(update, stale.model_d)
                compensated = Compensated(method=FIRST_ORDER, share=1.0)
            updates.append(compensated)
        return vectors, updates

    # Learning from errors.

    def _learn(self, stale: StaleRound, made: Made, errors: Sequence[MeasuredError]) -> list[str]:
        """Change the state after a round; notes about it."""
        self._matches.settle(stale.updates, stale.version)
        remembered = [
            self._remember(stale.version, stale.updates[index], one) for index, one in made["estimates"].items()
        ]
        notes = [] if all(remembered) else [NO_ROOM]
        for error in errors:
            self.recent.add(error)
        for rows in made["trials"]:
            self._trials.add(from_rows(rows))
        self._choose()
        next_version = stale.version + 1
        may_end = self.settings.switch != "never" and self._off_at is None
        if may_end and errors and not self.helps():
            self._off_at = next_version
            notes.append(self._why_ended(next_version))
        if self._share(next_version) == 0:
            self._matches.clear()
            self.inversions.forget()
        return notes

    def _choose(self) -> None:
        """Use the best choice, and limit iterations to the loss checkpoint after it."""
        best = self._trials.best() if self.settings.adapt else None
        self._choice = best or self._first_choice
        self.inversions.longest = None if best is None else 2 * best.iterations

    def _remember(self, version: int, update: StaleUpdate, one: Mapping[str, Any]) -> bool:
        """Keep reconstructions for a warm start and for measuring; whether there was memory for the latter."""
        choice = Choice(*one["choice"])
        kept = {mark: Reconstruction.from_state(state) for mark, state in one["kept"].items()}
        self.inversions.remember(update.client_id, kept[choice.iterations])
        return self._matches.add(Waiting(version, update, kept, choice, one["steps"], one["rate"]))

    def _measure(self, stale: StaleRound) -> tuple[list[MeasuredError], list[dict[Choice, Trial]], list[str]]:
        """Compare earlier estimates with the updates of a round: errors, trials of each update, and notes.

        Of several updates of a client, the first suitable one measures an estimate.
        """
        errors: list[MeasuredError] = []
        trials: list[dict[Choice, Trial]] = []
        notes: list[str] = []
        measured_until: dict[int, int] = {}
        for update in stale.updates:
            waiting = self._matches.of(update)
            if waiting is None or update.kept_base_d is None:
                continue
            if waiting.version <= measured_until.get(update.client_id, -1):
                continue
            measured_until[update.client_id] = update.base_version
            try:
                of_update, by_choice = self._compare(update, waiting)
            except torch.OutOfMemoryError:
                notes = [UNMEASURED]
                continue
            errors += of_update
            trials.append(by_choice)
        return errors, trials, notes

    def _compare(self, update: StaleUpdate, waiting: Waiting) -> tuple[list[MeasuredError], dict[Choice, Trial]]:
        """Estimate an update from an earlier one of its client, by each method and choice.

        Gives errors of the estimates that were used, none if one is not finite; and a trial of each choice.
        """
        device = update.base_d.device
        before = replace(
            waiting.stale, vector_d=waiting.stale.vector_d.to(device), kept_base_d=waiting.stale.base_d.to(device)
        )
        staleness = update.base_version - before.base_version
        unchanged = measured(update, UNCHANGED, before.vector_d, staleness)
        first_order_d = self.first_order.estimate(before, update.base_d)
        errors = [unchanged, measured(update, FIRST_ORDER, first_order_d, staleness)]
        trials: dict[Choice, Trial] = {}
        is_comparable = unchanged.l1 > 0 and is_finite(unchanged)
        for checkpoint, kept in waiting.kept.items():
            inverted = self.estimates(before, update.base_d, kept)
            is_choosable = checkpoint in self._loss_checkpoints
            for choice in self._choices(checkpoint) if is_choosable else [waiting.choice]:
                estimate_d = _between(before.vector_d, inverted[choice.residual], choice.trust)
                error = measured(update, INVERSION, estimate_d, staleness)
                if choice == waiting.choice:
                    errors.append(error)
                if is_choosable and is_comparable and is_finite(error):
                    trials[choice] = Trial(error.l1, error.cosine, unchanged.l1, unchanged.cosine)
        return errors if is_finite(*errors) else [], trials

    def _choices(self, checkpoint: int) -> list[Choice]:
        """All choices with a reconstruction after so many iterations."""
        residuals = sorted({*RESIDUALS, self._first_choice.residual})
        trusts = sorted({*TRUSTS, self._first_choice.trust})
        return [Choice(checkpoint, residual, trust) for residual in residuals for trust in trusts]

    def _true_errors(self, stale: StaleRound, index: int, estimate: Mapping[str, Any]) -> list[MeasuredError]:
        """Errors against the update that the client computes from the current model, in a simulation."""
        assert self.context.fresh_update is not None
        update = stale.updates[index]
        true = replace(update, vector_d=self.context.fresh_update(update, stale))
        first_order_d = self.first_order.estimate(update, stale.model_d)
        vectors = {UNCHANGED: update.vector_d, FIRST_ORDER: first_order_d, INVERSION: estimate["estimate"]}
        errors = [measured(true, method, vector_d, update.staleness) for method, vector_d in vectors.items()]
        return errors if is_finite(*errors) else []

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
            "off_at": self._off_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inversions.load_state_dict(state["inversions"])
        self.first_order.load_state_dict(state["first_order"])
        self._matches.load_state_dict(state["matches"])
        self.recent.load_state_dict(state["recent"])
        self._off_at = state["off_at"]
        self._trials.load_state_dict(state["trials"])
        self._choose()


class Auto(GradientInversion):
    """Gradient inversion that also ends when the direction of its estimates is not better than that of the stale
    updates. The method with the smaller error replaces it: first-order compensation, or none.

    Inversion continues while, over the last `window` measured errors,

        mean L1(inversion) <= margin * mean L1(stale)   and   mean cosine(inversion) < mean cosine(stale)

    and updates that are not inverted are compensated to first order while mean L1(first order) < mean L1(stale), or no
    such means exist yet.
    Source: ours, docs/methods/compensators.md#auto
    """

    def helps(self) -> bool:
        known = self.known
        return super().helps() and (known is None or known.cosine < known.stale_cosine)

    def lesser(self, *, has_ended: bool) -> str:  # noqa: ARG002  (the errors decide)
        first_order, unchanged = self.recent.mean(FIRST_ORDER), self.recent.mean(UNCHANGED)
        if first_order is None or unchanged is None or first_order[0] < unchanged[0]:
            return FIRST_ORDER
        return UNCHANGED


def _between(vector_d: Tensor, other_d: Tensor, share: float) -> Tensor:
    """Interpolation; exactly the other vector for 1."""
    return other_d if share == 1 else torch.lerp(vector_d, other_d, share)
