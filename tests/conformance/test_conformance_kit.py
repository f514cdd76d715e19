"""The conformance kit: every registered policy passes it, and each law finds the fault that it is there for."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field

from unstale.conformance import Row, examine
from unstale.conformance.laws import LAWS
from unstale.errors import UserError
from unstale.policies import Policy, PolicySettings, Step, names, registry
from unstale.policies.weights import uniform

Register = Callable[[type[Policy[Any]]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Make a class known as the policy `own`."""
    return lambda policy_class: monkeypatch.setitem(registry._BUILT_IN, "own", policy_class)


def failed(rows: list[Row]) -> dict[str, str]:
    return {row.case: row.got for row in rows if row.verdict != "pass"}


class Average(Policy[PolicySettings]):
    """The average."""

    source = "for tests"

    def step(self, batch) -> Step:
        return self.weighted(batch, uniform(len(batch)))


@pytest.mark.parametrize("name", names())
def test_every_policy_passes(name: str) -> None:
    rows = list(examine((name,)))
    assert failed(rows) == {}
    assert len(rows) > len(LAWS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", names())
def test_every_policy_passes_on_a_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert failed(list(examine((name,), "cuda"))) == {}


def test_a_policy_that_is_no_ones_passes_by_the_laws_alone(register: Register) -> None:
    register(Average)
    rows = list(examine(("own",)))
    assert failed(rows) == {}
    assert [row.case for row in rows] == ["it can be made", *LAWS]


def test_all_policies_are_examined_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BUILT_IN", {"own": Average, "other": Average})
    assert {row.policy for row in examine()} == {"own", "other"}


def test_an_unknown_policy_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="unknown policy 'fedavgg'; did you mean 'fedavg'"):
        list(examine(("fedavgg",)))


# ------------------------------------------------------------------------------------------- what each law is there for


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


class FailsOnNobody(Average):
    def step(self, batch) -> Step:
        return self.weighted(batch, torch.full((len(batch),), 1 / len(batch), dtype=torch.float64))


class Overflows(Average):
    def step(self, batch) -> Step:
        return self.weighted(batch, torch.exp(batch.staleness_K.double()) * uniform(len(batch)))


class WaitsAndMoves(Average):
    def step(self, batch) -> Step:
        step = super().step(batch)
        return Step(direction_d=step.direction_d, rate_factor=1.0, weights_K=step.weights_K, counts=False)


class FirstOnly(Average):
    def step(self, batch) -> Step:
        weights_K = torch.zeros(len(batch), dtype=torch.float64)
        weights_K[:1] = 1
        return self.weighted(batch, weights_K)


class SendsNothing(Average):
    sends_extra = True


class SilentSettings(PolicySettings):
    power: float = Field(1.0)


class Silent(Average):
    Settings = SilentSettings


@pytest.mark.parametrize(
    ("faulty", "law"),
    [
        (WrongShape, "a step has the promised shapes"),
        (Writes, "arguments are not written to"),
        (Shares, "two policies share nothing"),
        (Shares, "the same rounds give the same bits"),
        (KeepsRows, "no round is kept"),
        (Forgets, "a policy continues from its state"),
        (SharesItsState, "a saved state is not shared"),
        (SharesItsState, "a policy continues from its state"),
        (FailsOnNobody, "empty rounds give finite steps"),
        (FailsOnNobody, "rounds of any size give finite steps"),
        (Overflows, "great staleness gives finite steps"),
        (WaitsAndMoves, "a round that does not count moves nothing"),
        (FirstOnly, "the order of arrival changes rounding only"),
        (SendsNothing, "what is sent to clients is never overwritten"),
        (Silent, "it says what it is"),
    ],
)
def test_a_law_finds_its_fault(faulty: type[Policy[Any]], law: str, register: Register) -> None:
    register(faulty)
    assert law in failed(list(examine(("own",))))


def test_every_law_is_shown_to_find_something() -> None:
    (mark,) = test_a_law_finds_its_fault.pytestmark
    assert {law for _, law in mark.args[1]} == set(LAWS)


def test_a_policy_may_say_that_the_order_matters(register: Register) -> None:
    class Ordered(FirstOnly):
        order_matters = True

    register(Ordered)
    assert failed(list(examine(("own",)))) == {}


def test_a_case_that_raises_is_an_error_and_the_others_go_on(register: Register) -> None:
    register(FailsOnNobody)
    rows = {row.case: row for row in examine(("own",))}
    row = rows["empty rounds give finite steps"]
    assert (row.verdict, row.got) == ("error", "ZeroDivisionError: division by zero")
    assert rows["it says what it is"].verdict == "pass"


def test_a_policy_that_cannot_be_made_is_an_error_and_no_crash(register: Register) -> None:
    class Broken(Average):
        def __init__(self, settings, context) -> None:
            raise RuntimeError("no")

    register(Broken)
    (row,) = examine(("own",))
    assert (row.case, row.verdict, row.got) == ("it can be made", "error", "RuntimeError: no")


def test_required_settings_come_from_the_class(register: Register) -> None:
    class NeedsPower(PolicySettings):
        power: float = Field(description="p", json_schema_extra={"source": "s"})

    class Needs(Average):
        Settings = NeedsPower

    register(Needs)
    (row,) = examine(("own",))
    assert (row.verdict, row.got) == ("fail", "'power' is required: give the class example_settings")
    Needs.example_settings = MappingProxyType({"power": 2.0})
    assert failed(list(examine(("own",)))) == {}
