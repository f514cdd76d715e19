"""Wrong policies: each violates a law of the conformance kit, and every law detects one."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field

from unstale.conformance import examine
from unstale.conformance.kit import LAWS
from unstale.policies import Policy, PolicySettings, Step, registry
from unstale.policies.weights import first_rows, uniform


class Average(Policy[PolicySettings]):
    """The average."""

    source = "for tests"

    def step(self, batch) -> Step:
        return self.weighted(batch, uniform(len(batch)))


# -------------------------------------------------------------------------------------------------------------- conduct


class WrongShape(Average):
    def step(self, batch) -> Step:
        return Step(direction_d=torch.zeros(1), rate_factor=1.0, weights_K=uniform(len(batch)))


class Writes(Average):
    def step(self, batch) -> Step:
        batch.matrix_Kd.mul_(2)
        return super().step(batch)


class Shares(Average):
    """A counter of the class, not of the policy."""

    steps: ClassVar[list[int]] = [0]

    def step(self, batch) -> Step:
        self.steps[0] += 1
        return self.weighted(batch, self.steps[0] * uniform(len(batch)))


class KeepsRows(Average):
    def __init__(self, settings, context) -> None:
        super().__init__(settings, context)
        self.last_Kd = None

    def step(self, batch) -> Step:
        direction_d = super().step(batch).direction_d.clone()
        if self.last_Kd is not None:
            direction_d += self.last_Kd.sum(0)
        self.last_Kd = batch.matrix_Kd
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(len(batch)))


class WaitsAndMoves(Average):
    def step(self, batch) -> Step:
        step = super().step(batch)
        return Step(direction_d=step.direction_d, rate_factor=1.0, weights_K=step.weights_K, counts=False)


class SendsNothing(Average):
    sends_extra = True


class DrawsFromTorch(Average):
    def step(self, batch) -> Step:
        torch.rand(1)
        return super().step(batch)


# ---------------------------------------------------------------------------------------------------------------- state


class Forgets(Average):
    """Its momentum is not in its state."""

    def __init__(self, settings, context) -> None:
        super().__init__(settings, context)
        self.momentum_d = torch.zeros(self.dimension)

    def step(self, batch) -> Step:
        self.momentum_d = 0.5 * self.momentum_d + super().step(batch).direction_d
        return Step(direction_d=self.momentum_d, rate_factor=1.0, weights_K=uniform(len(batch)))


class SharesItsState(Forgets):
    def step(self, batch) -> Step:
        self.momentum_d.mul_(0.5).add_(Average.step(self, batch).direction_d)
        return Step(direction_d=self.momentum_d, rate_factor=1.0, weights_K=uniform(len(batch)))

    def state_dict(self):
        return {"momentum_d": self.momentum_d}

    def load_state_dict(self, state) -> None:
        self.momentum_d = state["momentum_d"]


class Counts(Average):
    """Counts its rounds."""

    def __init__(self, settings, context) -> None:
        super().__init__(settings, context)
        self.steps = 0

    def step(self, batch) -> Step:
        self.steps += 1
        return self.weighted(batch, uniform(len(batch)), rate_factor=self.rate())

    def rate(self) -> float:
        return 1.0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state) -> None:
        self.steps = state["steps"]


class ForgetsItsCounter(Counts):
    """Its counter has an effect only after ten rounds."""

    def rate(self) -> float:
        return 1.0 if self.steps <= 10 else 0.75

    def state_dict(self):
        return {}

    def load_state_dict(self, state) -> None:
        pass


class AddsWhatItLoads(Counts):
    def rate(self) -> float:
        return 1 - 0.5 / self.steps

    def load_state_dict(self, state) -> None:
        self.steps += state["steps"]


class SavesASet(Counts):
    def state_dict(self):
        return {"steps": self.steps, "seen": {1}}


class NeedsARoundSize(Average):
    def __init__(self, settings, context) -> None:
        super().__init__(settings, context)
        self.share = 1 / context.round_size


class KnowsFiveClients(Average):
    def step(self, batch) -> Step:
        known_K = (batch.client_ids_K < 5).double()
        return self.weighted(batch, known_K / known_K.sum().clamp(min=1))


class CountsOnFiveClients(Average):
    def step(self, batch) -> Step:
        seen_N = torch.zeros(5)
        seen_N[batch.client_ids_K] = 1
        return super().step(batch)


class BoldSettings(PolicySettings):
    bold: bool = Field(False, description="d", json_schema_extra={"source": "s"})


class BrokenOption(Average):
    Settings = BoldSettings

    def step(self, batch) -> Step:
        if self.settings.bold:
            raise RuntimeError("it never worked")
        return super().step(batch)


class NoSuchDefault(Average):
    Settings = BoldSettings
    reference_defaults: ClassVar[dict[str, Any]] = {"brave": True}


# ----------------------------------------------------------------------------------------------------------- arithmetic


class FailsOnEmptyRounds(Average):
    def step(self, batch) -> Step:
        return self.weighted(batch, torch.full((len(batch),), 1 / len(batch), dtype=torch.float64))


class Overflows(Average):
    def step(self, batch) -> Step:
        return self.weighted(batch, torch.exp(batch.staleness_K.double()) * uniform(len(batch)))


class FirstOnly(Average):
    def step(self, batch) -> Step:
        weights_K = torch.zeros(len(batch), dtype=torch.float64)
        weights_K[:1] = 1
        return self.weighted(batch, weights_K)


class TakesEachClientOnce(Average):
    def step(self, batch) -> Step:
        rows = first_rows(batch.client_ids_K, set(range(self.clients)))
        weights_K = torch.full((len(rows),), 1 / max(len(rows), 1), dtype=torch.float64)
        return self.weighted(batch, weights_K)


class Uphill(Average):
    def step(self, batch) -> Step:
        step = super().step(batch)
        return replace(step, direction_d=-step.direction_d)


class NegativeRate(Average):
    def step(self, batch) -> Step:
        return self.weighted(batch, uniform(len(batch)), rate_factor=-1.0)


class Sum(Average):
    """K times as large as the average."""

    def step(self, batch) -> Step:
        return self.weighted(batch, torch.ones(len(batch), dtype=torch.float64))


class SaysSeven(Average):
    def step(self, batch) -> Step:
        return replace(super().step(batch), weights_K=torch.full((len(batch),), 7.0, dtype=torch.float64))


class HalfPrecision(Average):
    def step(self, batch) -> Step:
        step = super().step(batch)
        return replace(step, direction_d=step.direction_d.bfloat16().float())


class ShrinksForEver(Counts):
    def rate(self) -> float:
        return 1 / self.steps


class GrowsForEver(Counts):
    def rate(self) -> float:
        return 1 - 0.5**self.steps if self.steps < 20 else 1.2 ** (self.steps - 20)


class ReportsNoNumber(Average):
    def step(self, batch) -> Step:
        return replace(super().step(batch), metrics={"norm": float("nan")})


class SquaresInFloat32(Average):
    """Every update at the mean length of the round: no number of 1e-25 has a square in float32."""

    def step(self, batch) -> Step:
        lengths_K = batch.matrix_Kd.square().sum(1).sqrt()
        sum_d = (batch.matrix_Kd / lengths_K[:, None]).sum(0) * lengths_K.sum()
        direction_d = sum_d / max(len(batch), 1) ** 2
        return Step(direction_d=direction_d, rate_factor=1.0, weights_K=uniform(len(batch)))


class SignsOnly(Average):
    def step(self, batch) -> Step:
        step = super().step(batch)
        return replace(step, direction_d=step.direction_d.sign())


class ForgetsTheEnd(Average):
    """It skips the end of a large model."""

    def step(self, batch) -> Step:
        step = super().step(batch)
        step.direction_d[1000:] = 0
        return step


class AddsBuffers(Average):
    def buffers_change(self, changes_Kb, weights_K):
        return changes_Kb.sum(0)


# --------------------------------------------------------------------------------------------------------- declarations


class SilentSettings(PolicySettings):
    power: float = Field(1.0)


class Silent(Average):
    Settings = SilentSettings


class ReservedSettings(PolicySettings):
    seed: int = Field(0, description="d", json_schema_extra={"source": "s"})


class Reserved(Average):
    Settings = ReservedSettings


class NoSuchTraining(Average):
    training = "nonsense"


class NoSuchLoop(Average):
    loops = ("foo",)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (WrongShape, "a step has the promised shapes"),
        (Writes, "arguments are not written to"),
        (Shares, "two policies share nothing"),
        (Shares, "the same rounds give the same bits"),
        (KeepsRows, "remembered rows are copied"),
        (Forgets, "a policy continues from its state"),
        (SharesItsState, "a saved state is not shared"),
        (SharesItsState, "a policy continues from its state"),
        (FailsOnEmptyRounds, "empty rounds give finite steps"),
        (FailsOnEmptyRounds, "rounds of any size give finite steps"),
        (Overflows, "great staleness gives finite steps"),
        (WaitsAndMoves, "a round that does not count moves nothing"),
        (FirstOnly, "the order of arrival changes rounding only"),
        (SendsNothing, "extra vectors are never overwritten"),
        (Silent, "the policy and its settings are described"),
        (DrawsFromTorch, "random numbers come from streams only"),
        (ForgetsItsCounter, "a policy continues from its state"),
        (AddsWhatItLoads, "a policy continues from its state"),
        (SavesASet, "a state holds plain values"),
        (NeedsARoundSize, "it runs where no end and no size of rounds is known"),
        (KnowsFiveClients, "equal fresh updates are a step along them"),
        (CountsOnFiveClients, "it runs with other numbers of clients and updates"),
        (BrokenOption, "it runs with every option"),
        (NoSuchDefault, "it runs in both profiles and in synchronous rounds"),
        (NoSuchDefault, "named parts and settings exist"),
        (TakesEachClientOnce, "updates of a client that is there twice are taken"),
        (Uphill, "equal fresh updates are a step along them"),
        (NegativeRate, "empty rounds give finite steps"),
        (ReportsNoNumber, "empty rounds give finite steps"),
        (NegativeRate, "equal fresh updates are a step along them"),
        (Sum, "equal fresh updates are a step along them"),
        (SaysSeven, "equal fresh updates are a step along them"),
        (HalfPrecision, "equal fresh updates are a step along them"),
        (ShrinksForEver, "the same round again and again gives the same step"),
        (GrowsForEver, "the same round again and again gives the same step"),
        (SquaresInFloat32, "equal fresh updates are a step along them"),
        (SquaresInFloat32, "tiny and huge updates give finite steps"),
        (SignsOnly, "updates twice as long give a step twice as long"),
        (ForgetsTheEnd, "a large model steps as a small one"),
        (AddsBuffers, "equal changes of buffers are made as they are"),
        (Reserved, "named parts and settings exist"),
        (NoSuchTraining, "named parts and settings exist"),
        (NoSuchLoop, "named parts and settings exist"),
    ],
)
def test_a_law_detects_its_violation(wrong: type[Policy[Any]], law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "own", wrong)
    assert law in {row.case for row in examine(("own",)) if row.verdict != "pass"}


def test_every_law_detects_a_violation() -> None:
    (mark,) = test_a_law_detects_its_violation.pytestmark
    assert {law for _, law in mark.args[1]} == set(LAWS)
