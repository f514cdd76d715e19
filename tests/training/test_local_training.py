from itertools import chain
from math import ceil, exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.gradient import Gradient
from unstale.training.models import build
from unstale.training.registry import create
from unstale.training.sgd import Sgd

TRAININGS = [
    Gradient(batch_size=4),
    Sgd(batch_size=4, steps=5),
    Sgd(batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01),
]


def rng(number: int = 0):
    return stream(0, Stream.BATCHES, 0, number)


def task(examples: int = 10):
    """A LeNet-like workspace, a base model and examples that are all different."""
    model = FlatModel(build("digits_cnn", (1, 8, 8), 10, seed=1))
    draws = rng(5)
    inputs_nX = torch.from_numpy(draws.normal(size=(examples, 1, 8, 8)).astype(np.float32))
    labels_n = torch.from_numpy(draws.integers(10, size=examples))
    return model, model.parameters_d.clone(), inputs_nX, labels_n


def two_weights(w0: float, w1: float) -> FlatModel:
    """logreg on one number without bias: logits (w0 x, w1 x)."""
    module = nn.Linear(1, 2, bias=False)
    module.weight.data = torch.tensor([[w0], [w1]], dtype=torch.float32)
    return FlatModel(module)


def test_the_gradient_of_a_logistic_regression_by_hand():
    # Logits (0, 0), so p = (1/2, 1/2). Gradient of the loss by w_c is the mean of (p_c - [y = c]) x:
    # x = 2, y = 0: (-1/2 * 2, 1/2 * 2) = (-1, 1);   x = 4, y = 1: (1/2 * 4, -1/2 * 4) = (2, -2).
    # Mean: (1/2, -1/2). Loss: ln 2 for both.
    model = two_weights(0, 0)
    inputs, labels = torch.tensor([[2.0], [4.0]]), torch.tensor([0, 1])
    update = Gradient(batch_size=2).compute(model, torch.zeros(2), inputs, labels, rng(), learning_rate=0.1)
    assert update.vector_d.tolist() == [0.5, -0.5]
    assert update.loss == pytest.approx(log(2))
    assert (update.kind, update.num_examples, update.steps, update.learning_rate) == ("gradient", 2, 1, 0.1)


def test_two_steps_of_sgd_by_hand():
    # One example x = 1, y = 0, eta = 1/2, from w = (0, 0).
    # Step 1: p = (1/2, 1/2), gradient (-1/2, 1/2), loss ln 2, w = (1/4, -1/4).
    # Step 2: p_1 = 1 / (1 + e^(1/2)), gradient (-p_1, p_1), loss -ln(1 - p_1) = ln(1 + e^(-1/2)),
    # w = (1/4 + p_1 / 2, -1/4 - p_1 / 2). Delta = base - trained.
    model = two_weights(7, 7)
    inputs, labels = torch.tensor([[1.0]]), torch.tensor([0])
    update = Sgd(steps=2).compute(model, torch.zeros(2), inputs, labels, rng(), learning_rate=0.5)
    moved = 0.25 + 0.5 / (1 + exp(0.5))
    assert update.vector_d.tolist() == pytest.approx([-moved, moved])
    assert update.loss == pytest.approx((log(2) + log(1 + exp(-0.5))) / 2)
    assert (update.kind, update.num_examples, update.steps, update.learning_rate) == ("delta", 1, 2, 0.5)


@pytest.mark.parametrize(
    ("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 0.01), (0.9, 0.0), (0.9, 0.01)], ids=str
)
@pytest.mark.parametrize(
    ("length", "steps"), [({"steps": 7}, 7), ({"epochs": 2}, 6)], ids=["steps", "epochs"]
)
def test_sgd_is_torch_optim_sgd_on_the_same_batches(momentum, weight_decay, length, steps):
    model, base_d, inputs_nX, labels_n = task(examples=10)
    training = Sgd(batch_size=4, momentum=momentum, weight_decay=weight_decay, **length)
    update = training.compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=0.1)

    # Batches of 4, 4 and 2, then a new order.
    draws, batches = rng(), []
    while len(batches) < steps:
        order = torch.from_numpy(draws.permutation(10))
        batches += [order[:4], order[4:8], order[8:]]
    reference = build("digits_cnn", (1, 8, 8), 10, seed=1)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    losses = []
    for batch in batches[:steps]:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(reference(inputs_nX[batch]), labels_n[batch])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    trained_d = nn.utils.parameters_to_vector(reference.parameters()).detach()
    torch.testing.assert_close(update.vector_d, base_d - trained_d, rtol=0, atol=1e-7)
    assert update.steps == steps
    assert update.loss == pytest.approx(sum(losses) / steps, rel=1e-6)


def test_one_plain_step_over_the_learning_rate_is_the_gradient():
    model, base_d, inputs_nX, labels_n = task(examples=6)
    gradient = Gradient(batch_size=6).compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=1)
    delta = Sgd(batch_size=6, steps=1).compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=0.5)
    torch.testing.assert_close(delta.vector_d / 0.5, gradient.vector_d, rtol=1e-5, atol=1e-6)
    assert delta.loss == pytest.approx(gradient.loss)


@pytest.mark.parametrize("training", TRAININGS, ids=str)
def test_the_same_stream_gives_the_same_bits_whatever_the_workspace_held(training):
    model, base_d, inputs_nX, labels_n = task()
    kept = base_d.clone(), inputs_nX.clone(), labels_n.clone()
    first = training.compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=0.1)
    other = training.compute(model, base_d + 1, inputs_nX, labels_n, rng(1), learning_rate=0.2)
    second = training.compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=0.1)
    assert torch.equal(first.vector_d, second.vector_d)
    assert first.loss == second.loss
    assert not torch.equal(first.vector_d, other.vector_d)
    assert all(torch.equal(now, then) for now, then in zip((base_d, inputs_nX, labels_n), kept, strict=True))


@pytest.mark.parametrize("training", TRAININGS, ids=str)
def test_the_global_generator_has_no_part_in_it(training):
    model, base_d, inputs_nX, labels_n = task()
    before = torch.random.get_rng_state()
    training.compute(model, base_d, inputs_nX, labels_n, rng(), learning_rate=0.1)
    assert torch.equal(torch.random.get_rng_state(), before)


class Recorder(nn.Module):
    """One weight, and a list of which examples came by in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 1))
        self.batches: list[list[int]] = []

    def forward(self, inputs_b1: torch.Tensor) -> torch.Tensor:
        self.batches.append(inputs_b1.flatten().int().tolist())
        return inputs_b1 @ self.weight.T


@given(held=st.integers(1, 12), batch_size=st.integers(1, 13), epochs=st.integers(1, 3))
@settings(deadline=None)
def test_each_epoch_of_sgd_sees_every_example_once_and_keeps_the_last_short_batch(held, batch_size, epochs):
    recorder = Recorder()
    inputs, labels = torch.arange(held).float()[:, None], torch.zeros(held, dtype=torch.int64)
    training = Sgd(batch_size=batch_size, epochs=epochs)
    update = training.compute(FlatModel(recorder), torch.zeros(2), inputs, labels, rng(), learning_rate=0.1)
    per_epoch = ceil(held / batch_size)
    assert update.steps == len(recorder.batches) == epochs * per_epoch
    for epoch in range(epochs):
        seen = recorder.batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [len(batch) for batch in seen[:-1]] == [batch_size] * (per_epoch - 1)
        assert sorted(chain.from_iterable(seen)) == list(range(held))


@given(held=st.integers(1, 12), batch_size=st.integers(1, 13))
@settings(deadline=None)
def test_a_gradient_draws_one_batch_without_replacement_and_counts_it(held, batch_size):
    recorder = Recorder()
    inputs, labels = torch.arange(held).float()[:, None], torch.zeros(held, dtype=torch.int64)
    training = Gradient(batch_size=batch_size)
    update = training.compute(FlatModel(recorder), torch.zeros(2), inputs, labels, rng(), learning_rate=0.1)
    (batch,) = recorder.batches
    assert update.num_examples == len(batch) == len(set(batch)) == min(batch_size, held)


def test_trainings_are_made_by_name():
    assert create("gradient", batch_size=8) == Gradient(batch_size=8)
    assert create("sgd", steps=5) == Sgd(batch_size=32, steps=5, momentum=0, weight_decay=0)


@pytest.mark.parametrize(
    ("name", "given_settings", "sentence"),
    [
        ("sdg", {}, "unknown training 'sdg'; did you mean 'sgd'?"),
        ("sgd", {"step": 1}, "unknown setting 'step' of training 'sgd'; did you mean 'steps'?"),
        ("sgd", {}, "training 'sgd': expected exactly one of steps and epochs"),
        ("sgd", {"steps": 1, "epochs": 1}, "training 'sgd': expected exactly one of steps and epochs"),
        ("sgd", {"steps": 1, "momentum": 1.0}, "training.momentum is 1.0, expected less than 1"),
        ("sgd", {"steps": 0}, "training.steps is 0, expected greater than or equal to 1"),
        ("gradient", {"batch_size": "many"}, "training.batch_size is 'many', expected a valid integer"),
        (
            "sgd",
            {"steps": 1, "weight_decay": float("inf")},
            "training.weight_decay is inf, expected a finite number",
        ),
    ],
)
def test_a_training_that_cannot_be_made_is_refused_in_one_sentence(name, given_settings, sentence):
    with pytest.raises(UserError) as caught:
        create(name, **given_settings)
    assert str(caught.value).startswith(sentence)
