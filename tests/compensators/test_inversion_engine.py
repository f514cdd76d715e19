"""Iterations of inversions: compared with an oracle, in groups, and their end."""

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import inversion_oracle as oracle
from support.compensation import CLASSES, SHAPE, images, network, numbers, reconstruction, settings, smooth
from unstale.compensators.inversion.disparity import DISPARITIES
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.iteration import Iteration, Targets
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.state import Inversion, State, Target
from unstale.compensators.network import LocalSteps, Network, as_vector
from unstale.training.models import build

LIKE = LocalSteps(steps=2, momentum=0.5, weight_decay=0.01)
ORACLES = {"soft": oracle.soft, "bce-raw": oracle.bce_raw}
RATES = {"constant": lambda i, count: 1.0, "steps": oracle.published_rate}


def engine(net: Network | None = None, *, like: LocalSteps = LIKE, **given: Any) -> Engine:
    return Engine(net or network(), like, settings(**given))


def begun(net: Network, seed: int = 0, *, examples: int = 4, steps: int = 2, iterations: int = 5) -> Inversion:
    """An inversion of a random update, in float64 where the network is. Rates differ, too."""
    dtype = next(net._module.parameters()).dtype
    base_d = numbers(net.dimension, seed=seed, scale=0.4).to(dtype)
    update_d = numbers(net.dimension, seed=seed + 100, scale=0.05).to(dtype)
    kept = reconstruction(examples, seed=seed)
    return Inversion(
        target=Target(base=net.parts(base_d), update=net.parts(update_d), steps=steps, rate=0.1 * (seed + 1)),
        iterations=iterations,
        now=Reconstruction(inputs_rX=kept.inputs_rX.to(dtype), labels_rC=kept.labels_rC.to(dtype)),
    )


def precise() -> Network:
    return Network(smooth().double(), SHAPE, CLASSES)


def state(one: Inversion) -> tuple[Tensor, Tensor]:
    return one.now.inputs_rX, one.now.labels_rC


def slopes_of(net: Network, *some: Inversion, **given: Any) -> tuple[tuple[Tensor, Tensor], Tensor]:
    targets = Targets.stacked([one.target for one in some], torch.device("cpu"))
    return Iteration(net, LIKE, settings(**given)).slopes(State.stacked([one.state for one in some]), targets)


def iterated(subject: Engine, *inversions: Inversion, times: int) -> None:
    for _ in range(times):
        subject.iterate(inversions)


@pytest.mark.parametrize("loss", ["soft", "bce-raw"])
@pytest.mark.parametrize("schedule", RATES)
@pytest.mark.parametrize("optimiser", ["adam", "sign-adam"])
@pytest.mark.parametrize(("learning_rate", "distance"), [(0.1, "l1"), (1.0, "l1"), (0.1, "l2"), (0.1, "cosine")])
def test_its_iterates_are_the_oracles(optimiser, schedule, loss, learning_rate, distance):
    # In float64: where a slope is nearly 0, float32 decides which way Adam's first steps go.
    net = precise()
    one = begun(net)
    subject = engine(
        net,
        optimiser=optimiser,
        schedule=schedule,
        disparity=distance,
        label_loss=loss,
        labels_start="normal",
        learning_rate=learning_rate,
    )
    rates = [learning_rate * RATES[schedule](i, one.iterations) for i in range(3)]
    trail = oracle.invert(
        *(smooth().double(), as_vector(one.target.base), as_vector(one.target.update), *state(one)),
        oracle.Local(steps=2, rate=one.target.rate, momentum=0.5, weight_decay=0.01),
        rates=rates,
        sign=optimiser == "sign-adam",
        loss=ORACLES[loss],
        distance=distance,
    )
    for x, l, disparity in zip(trail.x, trail.l, trail.disparity, strict=True):  # noqa: E741
        iterated(subject, one, times=1)
        assert float(one.disparity) == pytest.approx(disparity, rel=1e-6)
        torch.testing.assert_close(one.now.inputs_rX, x, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.now.labels_rC, l, atol=1e-5, rtol=0)


@pytest.mark.parametrize("distance", DISPARITIES)
def test_the_gradients_of_the_disparity_are_the_oracles_for_each_of_several(distance):
    net = precise()
    some = [begun(net, seed) for seed in (0, 1, 2)]
    slopes, disparity_B = slopes_of(net, *some, disparity=distance)
    for place, one in enumerate(some):
        x, l = (part.clone().requires_grad_(True) for part in state(one))  # noqa: E741
        expected = oracle.disparity(
            *(smooth().double(), as_vector(one.target.base), x, l, as_vector(one.target.update)),
            oracle.Local(steps=2, rate=one.target.rate, momentum=0.5, weight_decay=0.01),
            distance=distance,
        )
        assert float(disparity_B[place]) == pytest.approx(float(expected.detach()), rel=1e-6)
        for ours, theirs in zip(slopes, torch.autograd.grad(expected, [x, l]), strict=True):
            torch.testing.assert_close(ours[place], theirs, atol=1e-6, rtol=1e-5)


def test_the_gradients_with_relu_and_pooling_are_the_oracles():
    module = build("digits_cnn", (1, 8, 8), 10, seed=1).double()
    net = Network(module, (1, 8, 8), 10)
    one = begun(net)
    one.now = Reconstruction(inputs_rX=images(3, 1, 8, 8).double(), labels_rC=numbers(3, 10, seed=1).double())
    slopes, _ = slopes_of(net, one)
    x, l = (part.clone().requires_grad_(True) for part in state(one))  # noqa: E741
    expected = oracle.disparity(
        *(module, as_vector(one.target.base), x, l, as_vector(one.target.update)),
        oracle.Local(steps=2, rate=one.target.rate, momentum=0.5, weight_decay=0.01),
    )
    for ours, theirs in zip(slopes, torch.autograd.grad(expected, [x, l]), strict=True):
        torch.testing.assert_close(ours[0], theirs, atol=1e-6, rtol=1e-5)


def test_several_together_equal_each_alone():
    net = precise()
    together = [begun(net, seed) for seed in (0, 1, 2)]
    alone = [begun(net, seed) for seed in (0, 1, 2)]
    subject = engine(net)
    iterated(subject, *together, times=5)
    for one in alone:
        iterated(subject, one, times=5)
    for one, other in zip(together, alone, strict=True):
        for ours, theirs in zip(state(one), state(other), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.disparity, other.disparity, atol=1e-5, rtol=1e-5)


def test_several_together_make_the_same_disparity_and_estimate_in_float32():
    net = network()
    together = [begun(net, seed) for seed in (0, 1, 2)]
    alone = [begun(net, seed) for seed in (0, 1, 2)]
    subject = engine(net)
    iterated(subject, *together, times=5)
    for one in alone:
        iterated(subject, one, times=5)
    for one, other in zip(together, alone, strict=True):
        estimates = [
            subject.local_update(each.now, each.target.base, each.target.steps, each.target.rate)
            for each in (one, other)
        ]
        torch.testing.assert_close(*estimates, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.disparity, other.disparity, atol=1e-5, rtol=1e-5)


def test_more_than_fit_together_are_computed_in_turn(monkeypatch):
    net = precise()
    sizes = []
    iterate = Engine._iterate
    monkeypatch.setattr(Engine, "_iterate", lambda self, some: (sizes.append(len(some)), iterate(self, some)))
    some = [begun(net, seed) for seed in range(5)]
    iterated(engine(net, batch_clients=2), *some, times=1)
    assert sizes == [2, 2, 1]
    assert [one.done for one in some] == [1] * 5


@pytest.mark.parametrize("distance", DISPARITIES)
def test_the_disparity_of_an_update_of_other_data_falls(distance):
    net = network()
    one, subject = begun(net, iterations=40), engine(net, iterations=40, disparity=distance)
    update_d = subject.local_update(reconstruction(6, seed=7), one.target.base, one.target.steps, one.target.rate)
    one.target = replace(one.target, update=net.parts(update_d))
    iterated(subject, one, times=1)
    first = float(one.disparity)
    iterated(subject, one, times=39)
    assert float(one.disparity) < 0.5 * first


def test_examples_stay_within_2_and_labels_need_not():
    one = begun(network())
    iterated(engine(learning_rate=3.0, schedule="constant", optimiser="sign-adam"), one, times=3)
    assert float(one.now.inputs_rX.abs().max()) == 2.0
    assert float(one.now.labels_rC.abs().max()) > 4.0


def test_only_those_of_one_kind_are_computed_together():
    net = network()
    with pytest.raises(AssertionError, match="several kinds"):
        engine(net).iterate([begun(net), begun(net, 1, examples=5)])
    assert begun(net).kind != begun(net, steps=3).kind


# Numbers that are none.


def test_an_update_that_is_not_finite_does_not_change_the_reconstruction():
    net = network()
    one = begun(net)
    first, *rest = one.target.update
    one.target = replace(one.target, update=(torch.full_like(first, torch.inf), *rest))
    before = state(one)
    iterated(engine(net), one, times=3)
    assert all(torch.equal(*pair) for pair in zip(state(one), before, strict=True))
    assert one.done == 3


def test_an_iterate_that_is_not_finite_is_not_accepted(monkeypatch):
    # The third iteration fails: the result of the second stays, and the fourth continues from it.
    net, at = network(), []
    slopes, one, subject = Iteration.slopes, begun(net), engine(net)

    def failing(self, *values):
        (inputs_slope, labels_slope), disparity_B = slopes(self, *values)
        if one.done == 2:
            labels_slope = labels_slope * torch.nan
        return (inputs_slope, labels_slope), disparity_B

    monkeypatch.setattr(Iteration, "slopes", failing)
    for _ in range(4):
        iterated(subject, one, times=1)
        at.append(state(one))
    assert all(torch.equal(*pair) for pair in zip(at[1], at[2], strict=True))
    assert not torch.equal(at[2][0], at[3][0])
    assert all(bool(tensor.isfinite().all()) for tensor in (*at[3], *one.state))


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_from_an_iterate_whose_disparity_is_not_finite_it_goes_back_to_the_last_whose_was(monkeypatch, number):
    # That of the second iterate is not finite: the third is the first again, and the fourth continues from it.
    net, at = network(), []
    slopes, one, subject = Iteration.slopes, begun(net), engine(net)

    def failing(self, *values):
        found, disparity_B = slopes(self, *values)
        return found, torch.full_like(disparity_B, number) if one.done == 2 else disparity_B

    monkeypatch.setattr(Iteration, "slopes", failing)
    for _ in range(4):
        iterated(subject, one, times=1)
        at.append(state(one))
    assert not torch.equal(at[0][0], at[1][0])
    assert all(torch.equal(*pair) for pair in zip(at[0], at[2], strict=True))
    assert not torch.equal(at[2][0], at[3][0])
    assert bool(at[3][0].isfinite().all())


def test_an_update_that_is_not_finite_does_not_change_others():
    net = precise()
    good, alone, bad = begun(net), begun(net), begun(net, 1)
    first, *rest = bad.target.update
    bad.target = replace(bad.target, update=(first * torch.nan, *rest))
    iterated(engine(net), bad, good, times=4)
    iterated(engine(net), alone, times=4)
    for ours, theirs in zip(state(good), state(alone), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# The end.


# The device.


@pytest.mark.parametrize(("fit", "left"), [(8, 8), (4, 4), (3, 2), (1, 1)])
def test_where_the_memory_is_too_small_half_as_many_are_computed_together(monkeypatch, fit, left):
    net = network()
    iterate = Engine._iterate

    def short(self, some):
        if len(some) > fit:
            raise torch.OutOfMemoryError
        iterate(self, some)

    monkeypatch.setattr(Engine, "_iterate", short)
    some = [begun(net, seed) for seed in range(8)]
    subject = engine(net, batch_clients=8)
    iterated(subject, *some, times=2)
    assert subject.together == left
    assert [one.done for one in some] == [2] * 8


def test_smaller_groups_are_halved_from_their_size(monkeypatch):
    # Three do not fit where eight might be: not four are tried next, but one.
    iterate, tried = Engine._iterate, []

    def short(self, some):
        tried.append(len(some))
        if len(some) > 1:
            raise torch.OutOfMemoryError
        iterate(self, some)

    monkeypatch.setattr(Engine, "_iterate", short)
    net = network()
    engine(net, batch_clients=8).iterate([begun(net, seed) for seed in range(3)])
    assert tried == [3, 1, 1, 1]


def test_one_that_does_not_fit_alone_raises(monkeypatch):
    def short(self, some):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Engine, "_iterate", short)
    net = network()
    with pytest.raises(torch.OutOfMemoryError):
        engine(net, batch_clients=4).iterate([begun(net, seed) for seed in range(4)])


def test_bfloat16_is_near_and_leaves_the_state_in_float32():
    net = network()
    low, full = begun(net), begun(net)
    iterated(engine(net, precision="bfloat16"), low, times=1)
    iterated(engine(net), full, times=1)
    assert {tensor.dtype for tensor in low.state} == {torch.float32}
    assert isfinite(float(low.disparity))
    assert float(low.disparity) == pytest.approx(float(full.disparity), rel=0.05)


def test_the_published_schedule_has_the_steps_of_the_paper():
    # I = 15,000: floor(I / 2.667) = 5624, floor(I / 1.6) = 9375, floor(I / 1.142) = 13134.
    subject = engine(schedule="steps", learning_rate=1.0, iterations=15_000)
    one = begun(network(), iterations=15_000)
    rates = [subject._rate(one, done) for done in (0, 5623, 5624, 9374, 9375, 13133, 13134, 14999)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
