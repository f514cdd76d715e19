"""Gradient inversion: what made a stale update is reconstructed, and trained on again from the current model.

Legend: d parameters, r reconstructed examples.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unstale.compensators.compensator import (
    AS_IT_IS,
    Compensated,
    Compensator,
    CompensatorContext,
    Made,
    MeasuredError,
    Outcome,
    Received,
    StaleRound,
)
from unstale.compensators.errors import Matches, Recent, Switch, Waiting, measured
from unstale.compensators.first_order import FirstOrder
from unstale.compensators.inversion.choice import (
    RESIDUALS,
    TRUSTS,
    Choice,
    Trial,
    Trials,
    nearest,
    next_mark,
)
from unstale.compensators.inversion.engine import Inversion
from unstale.compensators.inversion.inversions import NOT_FINITE, Inversions
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.errors import UserError

INVERSION, FIRST_ORDER = "gradient-inversion", "first-order"


class GradientInversion(Compensator[InversionSettings]):
    """A stale update is replaced by what its reconstructed data would make of the current model.

        D_rec = argmin |LU(w_b; D_rec) - u|_1
        u^ = (1 - trust) u + trust (LU(w_t; D_rec) + residual (u - LU(w_b; D_rec)))

    until the estimates turn out worse than the stale updates are. What does not fit the budget is compensated to first
    order. Source: algorithms.md 2.22; `residual` and `trust` are ours (docs/compensators.md), 0 and 1 in the paper.
    """

    Settings = InversionSettings
    source = "Wang & Gao, Unlimited Staleness in Federated Learning; algorithms.md 2.22"
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
        first = min(settings.iterations, settings.iterations_first) if settings.adapt else settings.iterations
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
    def trial(self) -> Trial | None:
        """How what is used now would have done lately; None while little is known."""
        return self._trials.of(self._choice)

    # What subclasses decide.

    def helps(self) -> bool:
        """Whether the estimates are better than what they replace, as far as the errors tell."""
        trial = self.trial
        if trial is not None:
            return trial.share <= self.settings.margin
        recent = self.recent
        if not (recent.is_full(INVERSION) and recent.is_full(AS_IT_IS)):
            return True
        return recent.mean(INVERSION)[0] <= self.settings.margin * recent.mean(AS_IT_IS)[0]

    def lesser(self, *, has_ended: bool) -> str:
        """What becomes of a stale update that is not inverted. has_ended: because inversion has, for good."""
        return AS_IT_IS if has_ended else FIRST_ORDER

    # Before a round closes.

    @property
    def begins_early(self) -> bool:
        return self.settings.start == "arrival"

    def begin(self, update: Received) -> None:
        if update.kept_base_d is not None and self._share(update.base_version + update.staleness) > 0:
            self.inversions.begin(update)

    def work(self) -> bool:
        return self.inversions.work()

    # A round.

    def make(self, stale: StaleRound) -> Made:
        errors, trials = self._matched(stale)
        if self.settings.switch == "oracle":
            errors = []
        wanted: dict[int, Received] = {}
        if self._share(stale.version) > 0:
            wanted = {place: update for place, update in enumerate(stale.updates) if update.staleness > 0}
        inverted = self.inversions.finish(wanted)
        self.inversions.close(stale.updates)
        estimates: dict[int, dict[str, Any]] = {}
        for place, one in inverted.found.items():
            update = wanted[place]
            mark = nearest(one.kept, self._choice.iterations)
            choice = self._choice._replace(iterations=mark)
            inverted_d = self.estimates(update, stale.model_d, one.kept[mark], one)[choice.residual]
            estimate_d = _between(update.vector_d.to(inverted_d.device), inverted_d, choice.trust)
            if not bool(estimate_d.isfinite().all()):
                inverted.fallbacks[NOT_FINITE] += 1
                continue
            if self.settings.switch == "oracle":
                errors.extend(self._true_errors(update, estimate_d, stale))
            estimates[place] = {
                "estimate": estimate_d,
                "choice": list(choice),
                "kept": {mark: kept.to("cpu").state_dict() for mark, kept in one.kept.items()},
                "steps": one.steps,
                "rate": one.rate,
                "iterations": one.done,
                "disparity": float(one.disparity),
            }
        return {
            "estimates": estimates,
            "trials": [[*choice, *trial] for choice, trial in trials],
            "errors": [[one.client_id, one.method, one.l1, one.cosine, one.staleness] for one in errors],
            "fallbacks": dict(inverted.fallbacks),
            "notes": inverted.notes,
            "spent": [self.inversions.budget.iterations, self.inversions.budget.seconds],
        }

    def take(self, stale: StaleRound, made: Made) -> Outcome:
        budget = self.inversions.budget
        budget.iterations, budget.seconds = made["spent"]
        errors = [
            MeasuredError(client_id=client_id, method=method, l1=l1, cosine=cosine, staleness=staleness)
            for client_id, method, l1, cosine, staleness in made["errors"]
        ]
        vectors, updates = self._replaced(stale, made["estimates"])
        self._matches.settle(stale.updates)
        for place, one in made["estimates"].items():
            self._remember(stale, stale.updates[place], one)
        for error in errors:
            self.recent.add(error)
        for iterations, residual, trust, share, cosine in made["trials"]:
            self._trials.add(Choice(iterations, residual, trust), Trial(share, cosine))
        self._choose()
        notes = list(made["notes"])
        may_end = self.settings.switch != "never" and self._switch.off_at is None
        if may_end and errors and not self.helps():
            self._switch.off_at = stale.version + 1
            notes.append(self._why_ended(stale.version + 1))
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

    def estimates(
        self, update: Received, model_d: Tensor, reconstruction: Reconstruction, like: Inversion | Waiting
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
        self.inversions.longest = None if best is None else next_mark(best.iterations)

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
                    method=INVERSION, share=share, iterations=one["iterations"], disparity=one["disparity"]
                )
            elif update.staleness > 0 and method == FIRST_ORDER and update.kept_base_d is not None:
                vectors[place] = self.first_order.estimate(update, stale.model_d)
                what = Compensated(method=FIRST_ORDER, share=1.0)
            updates.append(what)
        return vectors, updates

    # What is learned from it.

    def _remember(self, stale: StaleRound, update: Received, one: Mapping[str, Any]) -> None:
        """Keep what was reconstructed, and what tells how good it was once the client's next update is there."""
        choice = Choice(*one["choice"])
        kept = {mark: Reconstruction.from_state(state) for mark, state in one["kept"].items()}
        self.inversions.remember(update.client_id, kept[choice.iterations])
        self._matches.add(
            Waiting(
                version=stale.version,
                stale=replace(
                    update,
                    vector_d=update.vector_d.to("cpu", copy=True),
                    kept_base_d=update.base_d.to("cpu", copy=True),
                ),
                kept=kept,
                choice=choice,
                steps=one["steps"],
                rate=one["rate"],
            )
        )

    def _matched(self, stale: StaleRound) -> tuple[list[MeasuredError], list[tuple[Choice, Trial]]]:
        """What the updates of a round say about estimates: what each method would have made, of what was known before,
        of the models that they were made from. And of each choice the error, as a share of the stale update's own."""
        errors: list[MeasuredError] = []
        trials: list[tuple[Choice, Trial]] = []
        for update in stale.updates:
            waiting = self._matches.of(update)
            if waiting is None or update.kept_base_d is None:
                continue
            device = update.base_d.device
            before = replace(
                waiting.stale,
                vector_d=waiting.stale.vector_d.to(device),
                kept_base_d=waiting.stale.base_d.to(device),
            )
            bridged = update.base_version - before.base_version
            unchanged = measured(update, AS_IT_IS, before.vector_d, bridged)
            first_order_d = self.first_order.estimate(before, update.base_d)
            errors += [unchanged, measured(update, FIRST_ORDER, first_order_d, bridged)]
            for mark, kept in waiting.kept.items():
                if mark != waiting.choice.iterations and not self.settings.adapt:
                    continue
                inverted = self.estimates(before, update.base_d, kept, waiting)
                for choice in self._choices(mark):
                    estimate_d = _between(before.vector_d, inverted[choice.residual], choice.trust)
                    error = measured(update, INVERSION, estimate_d, bridged)
                    if choice == waiting.choice:
                        errors.append(error)
                    if unchanged.l1 > 0 and self.settings.adapt:
                        share, cosine = error.l1 / unchanged.l1, error.cosine - unchanged.cosine
                        trials.append((choice, Trial(share, cosine)))
        return errors, trials

    def _choices(self, mark: int) -> list[Choice]:
        """Those that can be made of a reconstruction after so many iterations."""
        first = self._first_choice
        if not self.settings.adapt:
            return [first._replace(iterations=mark)]
        residuals, trusts = sorted({*RESIDUALS, first.residual}), sorted({*TRUSTS, first.trust})
        return [Choice(mark, residual, trust) for residual in residuals for trust in trusts]

    def _true_errors(self, update: Received, estimate_d: Tensor, stale: StaleRound) -> list[MeasuredError]:
        """The errors against the update that the client makes of the current model, in simulation."""
        assert self.context.fresh_update is not None
        true = replace(update, vector_d=self.context.fresh_update(update, stale))
        first_order_d = self.first_order.estimate(update, stale.model_d)
        return [
            measured(true, AS_IT_IS, update.vector_d, update.staleness),
            measured(true, FIRST_ORDER, first_order_d, update.staleness),
            measured(true, INVERSION, estimate_d, update.staleness),
        ]

    def _why_ended(self, version: int) -> str:
        inverted, stale = self.recent.mean(INVERSION), self.recent.mean(AS_IT_IS)
        return (
            f"gradient inversion ends at version {version}: over the last {self.settings.window} updates its estimates "
            f"were wrong by {inverted[0]:.3g} (L1; {inverted[1]:.3f} by cosine), the stale updates by {stale[0]:.3g} "
            f"({stale[1]:.3f})"
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
