"""Gradient inversion in rounds: estimates, laws, and failures."""

import pytest
import torch
from torch import Tensor

from oracles import inversion_oracle as oracle
from support.compensation import (
    certain,
    context,
    equal,
    images,
    inversion,
    made,
    numbers,
    received,
    reconstructed,
    smooth,
    stale_round,
    taken,
    tensors_of,
)
from support.parts_of_runs import sgd
from unstale.compensators import LocalSteps, Network, StaleRound
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.inversions import Inversions
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.local import LocalTask
from unstale.training.models import build

NAMES = ("gradient-inversion", "auto")
INPUTS, LABELS = images(6, 1, 8, 8), torch.tensor([0, 3, 3, 9, 1, 0])
TRAINING = {"epochs": 3, "momentum": 0.5, "weight_decay": 0.01}


# With the true data it is the true update: docs/methods/README.md#golden-vectors.


def real_update(base_d: Tensor, rate: float = 0.1) -> Tensor:
    """The pseudo-gradient of a client that trains on all its examples at once."""
    model = FlatModel(build("digits_cnn", (1, 8, 8), 10, seed=1))
    training = sgd(batch_size=6, **TRAINING)
    task = LocalTask(
        base_d=base_d, learning_rate=rate, batches=training.batches(LABELS, stream(0, Stream.BATCHES, 0, 0)), seed=0
    )
    return training.compute(model, INPUTS, LABELS, task).vector_d / rate


@pytest.mark.parametrize("residual", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_with_the_true_data_the_disparity_is_0_and_the_estimate_is_the_true_unstale_update(name, residual):
    module = build("digits_cnn", (1, 8, 8), 10, seed=1)
    net = Network(module, (1, 8, 8), 10)
    steps = LocalSteps(batch_size=6, **TRAINING)
    subject = inversion(
        name,
        context(net, steps=steps),
        images_share=1.0,
        images_max=6,
        iterations=1,
        iterations_min=1,
        learning_rate=1e-12,  # so that it stays there
        residual=residual,
    )
    true = {"client": 0, "inputs": INPUTS, "labels": certain(LABELS, 10)}
    state = subject.state_dict()
    subject.load_state_dict({**state, "inversions": {**state["inversions"], "warm": [true]}})

    base_d, model_d = (numbers(net.dimension, seed=seed, scale=0.1) for seed in (1, 2))
    update = received(num_examples=6, vector_d=real_update(base_d), base_d=base_d)
    outcome = subject.take(round_ := stale_round(update, model_d=model_d), subject.make(round_))
    expected_d = real_update(model_d)
    torch.testing.assert_close(outcome.vectors[0], expected_d, atol=1e-4, rtol=1e-4)
    assert 0 <= outcome.updates[0].disparity < 1e-5 * 0.1 * float(update.vector_d.abs().sum())
    # The stale update is another one.
    assert float((update.vector_d - expected_d).norm()) > 0.2 * float(expected_d.norm())


# Parts of an estimate.


@pytest.mark.parametrize("residual", [0.0, 0.3])
def test_an_estimate_is_the_local_update_and_a_share_of_the_residual(residual):
    subject = inversion(where=context(steps=LocalSteps(steps=2, momentum=0.5)), residual=residual)
    update = received()
    round_ = stale_round(update)
    one = subject.make(round_)["estimates"][0]
    x, l = reconstructed(one)["inputs"], reconstructed(one)["labels"]  # noqa: E741

    def lu(w_d: Tensor) -> Tensor:
        local = oracle.Local(steps=2, rate=update.local_rate, momentum=0.5)
        return oracle.local_update(smooth(), w_d, x, l, local).detach() / update.local_rate

    rest_d = residual * (update.vector_d - lu(update.base_d))
    torch.testing.assert_close(one["estimate"], lu(round_.model_d) + rest_d, atol=1e-5, rtol=1e-5)
    assert (one["steps"], one["rate"], one["iterations"]) == (2, update.local_rate, 6)


def test_an_epoch_of_mini_batches_is_one_step_as_long_as_they_are_together():
    # ceil(8 / 3) mini-batches of rate 0.1.
    subject = inversion(where=context(steps=LocalSteps(epochs=2, batch_size=3)))
    one = subject.make(stale_round(received()))["estimates"][0]
    assert (one["steps"], one["rate"]) == (2, pytest.approx(0.3))


def test_the_outcome_describes_the_inversion():
    subject = inversion(iterations=7)
    round_ = stale_round(received())
    made_ = subject.make(round_)
    (compensated,) = subject.take(round_, made_).updates
    assert (compensated.method, compensated.share, compensated.iterations) == ("gradient-inversion", 1.0, 7)
    assert compensated.disparity == made_["estimates"][0]["disparity"] > 0


# Laws.


@pytest.mark.parametrize("name", NAMES)
def test_the_same_round_is_the_same_to_the_bit(name):
    updates = [received(client_id) for client_id in range(3)]
    first, second = (taken(inversion(name), *updates) for _ in range(2))
    assert equal(first, second)


def test_several_in_a_round_equal_each_alone():
    together = taken(inversion(), *(received(client_id) for client_id in range(3)))
    for client_id in range(3):
        alone = taken(inversion(), received(client_id))
        torch.testing.assert_close(alone.vectors[0], together.vectors[client_id], atol=1e-5, rtol=0)
        assert together.updates[client_id].disparity == pytest.approx(alone.updates[0].disparity, abs=1e-5)


def test_updates_of_different_sizes_equal_each_alone():
    updates = [received(client_id, num_examples=2 + 3 * client_id) for client_id in range(3)]
    together = taken(inversion(), *updates)
    for place, update in enumerate(updates):
        alone = taken(inversion(), update)
        torch.testing.assert_close(alone.vectors[0], together.vectors[place], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_its_arguments_are_not_written_to(name):
    subject = inversion(name)
    updates = [received(0), received(1, base_version=1, staleness=2), received(2, base_version=3, staleness=0)]
    round_ = stale_round(*updates)
    tensors = [round_.model_d, *(tensor for update in updates for tensor in (update.vector_d, update.base_d))]
    before = [tensor.clone() for tensor in tensors]
    subject.begin(updates[0])
    subject.work()
    made_ = subject.make(round_)
    tensors += (of_made := list(tensors_of(made_)))
    before += [tensor.clone() for tensor in of_made]
    subject.take(round_, made_)
    taken(subject, received(0, base_version=3, staleness=1), version=4)
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_fresh_updates_stay(name):
    fresh = received(0, base_version=3, staleness=0), received(2, staleness=0)
    outcome = taken(inversion(name), fresh[0], received(1), fresh[1])
    assert list(outcome.vectors) == [1]
    assert [compensated.method for compensated in outcome.updates] == ["none", "gradient-inversion", "none"]
    assert dict(outcome.fallbacks) == {}


# Errors.


def short_of_memory(monkeypatch: pytest.MonkeyPatch, fit: int) -> None:
    """A device that can invert so many updates together."""
    iterate = Engine._iterate

    def short(self, some):
        if len(some) > fit:
            raise torch.OutOfMemoryError
        iterate(self, some)

    monkeypatch.setattr(Engine, "_iterate", short)


def test_the_share_of_an_estimate_includes_trust():
    subject = inversion(trust=0.5)
    stale = received()
    made_ = subject.make(round_ := stale_round(stale))
    outcome = subject.take(round_, made_)
    assert outcome.updates[0].share == 0.5
    wholly = inversion(trust=1.0)
    estimate_d = wholly.take(round_, wholly.make(round_)).vectors[0]
    torch.testing.assert_close(outcome.vectors[0], (estimate_d + stale.vector_d) / 2)


def test_with_too_little_memory_groups_are_halved_with_one_note(monkeypatch):
    short_of_memory(monkeypatch, 1)
    subject = inversion(warm_start=False)
    notes = []
    for version in (3, 4):
        updates = [received(client_id, base_version=version - 3) for client_id in range(4)]
        outcome = taken(subject, *updates, version=version)
        assert [compensated.iterations for compensated in outcome.updates] == [6] * 4
        assert dict(outcome.fallbacks) == {}
        notes += outcome.notes
    assert notes == ["the device's memory is too small to invert 4 updates together; from now on at most 1 are"]


def test_where_memory_is_short_the_estimates_are_the_same(monkeypatch):
    updates = [received(client_id) for client_id in range(3)]
    expected = taken(inversion(), *updates)
    short_of_memory(monkeypatch, 2)
    found = taken(inversion(), *updates)
    for place in range(3):
        torch.testing.assert_close(found.vectors[place], expected.vectors[place], atol=1e-5, rtol=0)


@pytest.mark.parametrize("early", [False, True])
def test_an_update_too_large_for_memory_is_compensated_to_first_order(monkeypatch, early):
    updates = [received(client_id) for client_id in range(2)]
    expected = taken(made("first-order"), *updates)
    short_of_memory(monkeypatch, 0)
    subject = inversion()
    if early:
        subject.begin(updates[0])
        subject.work()
    outcome = taken(subject, *updates)
    assert dict(outcome.fallbacks) == {"memory": 2}
    assert [compensated.method for compensated in outcome.updates] == ["first-order"] * 2
    assert all(torch.equal(outcome.vectors[place], expected.vectors[place]) for place in (0, 1))
    assert outcome.notes[-1] == (
        "the device's memory is too small to invert even one update at a time, so that such updates are compensated to "
        "first order; lower compensator.settings.images_max"
    )
    assert sum("even one" in note for note in outcome.notes) == 1


@pytest.mark.parametrize("start", ["arrival", "close"])
def test_one_that_is_too_large_leaves_the_others_of_its_round_alone(monkeypatch, start):
    iterate = Engine._iterate

    def short(self, some):
        if len(some[0].now) > 2:
            raise torch.OutOfMemoryError
        iterate(self, some)

    monkeypatch.setattr(Engine, "_iterate", short)
    updates = received(0, num_examples=8), received(1, num_examples=4, staleness=2)
    subject = inversion(start=start)
    if subject.begins_early:
        subject.begin(updates[0])
        subject.work()
    outcome = taken(subject, *updates)
    assert [compensated.method for compensated in outcome.updates] == ["first-order", "gradient-inversion"]
    assert outcome.updates[1].iterations == 6
    assert dict(outcome.fallbacks) == {"memory": 1}


def test_too_little_memory_to_begin_falls_back(monkeypatch):
    def short(*args):
        raise torch.OutOfMemoryError

    subject = inversion()
    monkeypatch.setattr(Inversions, "_random_start", short)
    subject.begin(received(0))
    assert not subject.work()
    outcome = taken(subject, received(0), received(1, staleness=0))
    assert [compensated.method for compensated in outcome.updates] == ["first-order", "none"]
    assert dict(outcome.fallbacks) == {"memory": 1}
    assert sum("even one" in note for note in outcome.notes) == 1


def test_too_little_memory_for_the_estimate_falls_back(monkeypatch):
    def short(*args):
        raise torch.OutOfMemoryError

    subject = inversion()
    monkeypatch.setattr(Engine, "local_update", short)
    outcome = taken(subject, received(0))
    assert [compensated.method for compensated in outcome.updates] == ["first-order"]
    assert dict(outcome.fallbacks) == {"memory": 1}
    assert sum("even one" in note for note in outcome.notes) == 1


def test_too_little_memory_to_measure_an_estimate_is_noted(monkeypatch):
    def short(*args):
        raise torch.OutOfMemoryError

    subject = inversion()
    taken(subject, received(0))
    monkeypatch.setattr(Engine, "local_update", short)
    outcome = taken(subject, received(0, base_version=3, staleness=0), version=3)
    assert (list(outcome.errors), dict(outcome.fallbacks)) == ([], {})
    assert list(outcome.notes) == [
        "the device's memory is too small to compare estimates with some later updates, which are ignored"
    ]


def test_an_update_without_a_base_is_unchanged_and_noted():
    outcome = taken(inversion(), received(4, is_kept=False), received(1))
    assert list(outcome.vectors) == [1]
    assert [compensated.method for compensated in outcome.updates] == ["none", "gradient-inversion"]
    assert dict(outcome.fallbacks) == {"no-base": 1}
    assert list(outcome.notes) == [
        "the base versions of some updates are no longer kept; these updates are not compensated"
    ]


def test_an_estimate_that_is_not_finite_is_not_used():
    # A model with logits that are NaN: so is an update of it.
    update = received()
    model_d = numbers(123, scale=0.3)
    model_d[-1] = torch.inf
    subject = inversion()
    round_ = StaleRound(version=3, model_d=model_d, buffers_b=torch.empty(0), updates=[update])
    made_ = subject.make(round_)
    assert made_["estimates"] == {}
    outcome = subject.take(round_, made_)
    assert [compensated.method for compensated in outcome.updates] == ["first-order"]
    assert dict(outcome.fallbacks) == {"not-finite": 1}


def test_an_update_too_large_for_float32_leaves_the_others_of_its_round_alone():
    large = received(0, vector_d=torch.full((123,), 3e38))
    outcome = taken(inversion(), large, received(1))
    alone = taken(inversion(), received(1))
    torch.testing.assert_close(outcome.vectors[1], alone.vectors[0], atol=1e-5, rtol=0)


def test_a_round_without_updates_is_one():
    outcome = taken(inversion())
    assert (dict(outcome.vectors), list(outcome.updates)) == ({}, [])


# The oracle.


def test_the_oracle_replaces_stale_updates_by_true_ones_to_the_bit():
    true_d, asked = numbers(123, seed=77), []

    def fresh_update(update, stale):
        asked.append((update.client_id, stale.version))
        return true_d

    subject = made("oracle", context(fresh_update=fresh_update))
    round_ = stale_round(received(0), received(1, base_version=3, staleness=0))
    made_ = subject.make(round_)
    outcome = subject.take(round_, made_)
    assert asked == [(0, 3)]
    assert torch.equal(outcome.vectors[0], true_d)
    assert list(outcome.vectors) == [0]
    assert [(compensated.method, compensated.share) for compensated in outcome.updates] == [
        ("oracle", 1.0),
        ("none", 0.0),
    ]
