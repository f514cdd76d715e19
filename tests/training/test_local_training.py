from dataclasses import replace
from itertools import chain
from math import ceil, exp, log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from support.parts_of_runs import fedprox, gradient, moon, scaffold, sgd, training_of
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.settings.learning import TrainingSettings
from unstale.training.examples import TensorExamples
from unstale.training.local import LocalTask
from unstale.training.models import build
from unstale.training.objectives import Classification
from unstale.training.registry import TRAININGS as REGISTERED
from unstale.training.trainings import FedProx, Gradient, Moon, Scaffold, Sgd

TRAININGS = [
    gradient(batch_size=4),
    sgd(batch_size=4, steps=5),
    sgd(batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01),
    fedprox(batch_size=4, epochs=2, momentum=0.9, mu=0.1),
    moon(batch_size=4, epochs=2, weight_decay=0.01),
    scaffold(batch_size=4, steps=5, weight_decay=0.01),
]


def rng(number: int = 0):
    return stream(0, Stream.BATCHES, 0, number)


def examples_for(module: nn.Module, shape: tuple[int, ...], examples: int = 10):
    """A workspace, a base model and examples that are all different."""
    model = FlatModel(module)
    draws = rng(5)
    inputs_nX = torch.from_numpy(draws.normal(size=(examples, *shape)).astype(np.float32))
    labels_n = torch.from_numpy(draws.integers(10, size=examples))
    return model, model.parameters_d.clone(), inputs_nX, labels_n


def digits_examples(examples: int = 10):
    return examples_for(build("digits_cnn", (1, 8, 8), 10, seed=1), (1, 8, 8), examples)


def compute(training, model, base_d, inputs_nX, labels_n, draws=None, *, learning_rate=0.1, seed=0, buffers_b=None):
    """One task of a client with a stored state, where its training stores one."""
    task = LocalTask(
        base_d=base_d,
        learning_rate=learning_rate,
        batches=training.batches(labels_n, draws or rng()),
        seed=seed,
        buffers_b=buffers_b,
        extra_d=0.01 * base_d if training.needs_extra else None,
    )
    if training.keeps_state:
        earlier = replace(task, batches=training.batches(labels_n, rng(9)))
        task = replace(
            task, state=training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), earlier).state
        )
    return training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)


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
    update = compute(gradient(batch_size=2), model, torch.zeros(2), inputs, labels)
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
    update = compute(sgd(steps=2), model, torch.zeros(2), inputs, labels, learning_rate=0.5)
    moved = 0.25 + 0.5 / (1 + exp(0.5))
    assert update.vector_d.tolist() == pytest.approx([-moved, moved])
    assert update.loss == pytest.approx((log(2) + log(1 + exp(-0.5))) / 2)
    assert (update.kind, update.num_examples, update.steps, update.learning_rate) == ("delta", 1, 2, 0.5)


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 0.01), (0.9, 0.0), (0.9, 0.01)], ids=str)
@pytest.mark.parametrize(("length", "steps"), [({"steps": 7}, 7), ({"epochs": 2}, 6)], ids=["steps", "epochs"])
def test_sgd_is_torch_optim_sgd_on_the_same_batches(momentum, weight_decay, length, steps):
    model, base_d, inputs_nX, labels_n = digits_examples()
    training = sgd(batch_size=4, momentum=momentum, weight_decay=weight_decay, **length)
    update = compute(training, model, base_d, inputs_nX, labels_n)

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
    model, base_d, inputs_nX, labels_n = digits_examples(6)
    whole = compute(gradient(batch_size=6), model, base_d, inputs_nX, labels_n)
    delta = compute(sgd(batch_size=6, steps=1), model, base_d, inputs_nX, labels_n, learning_rate=0.5)
    torch.testing.assert_close(delta.vector_d / 0.5, whole.vector_d, rtol=1e-5, atol=1e-6)
    assert delta.loss == pytest.approx(whole.loss)


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_the_same_stream_gives_the_same_bits_in_any_workspace(training):
    model, base_d, inputs_nX, labels_n = digits_examples()
    kept = base_d.clone(), inputs_nX.clone(), labels_n.clone()
    first = compute(training, model, base_d, inputs_nX, labels_n)
    other = compute(training, model, base_d + 1, inputs_nX, labels_n, rng(1), learning_rate=0.2)
    second = compute(training, model, base_d, inputs_nX, labels_n)
    assert torch.equal(first.vector_d, second.vector_d)
    assert first.loss == second.loss
    assert not torch.equal(first.vector_d, other.vector_d)
    assert all(torch.equal(now, then) for now, then in zip((base_d, inputs_nX, labels_n), kept, strict=True))


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_dropout_is_decided_by_the_tasks_seed_alone(training):
    model, base_d, inputs_nX, labels_n = examples_for(
        build("lenet_gi", (1, 28, 28), 10, seed=1), (1, 28, 28), examples=6
    )
    first, other = (compute(training, model, base_d, inputs_nX, labels_n, seed=seed) for seed in (1, 2))
    torch.rand(1)  # moves the generators of the process
    second = compute(training, model, base_d, inputs_nX, labels_n, seed=1)
    assert torch.equal(first.vector_d, second.vector_d)
    assert not torch.equal(first.vector_d, other.vector_d)


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_the_global_generator_has_no_part_in_it(training):
    model, base_d, inputs_nX, labels_n = digits_examples()
    before = torch.random.get_rng_state()
    compute(training, model, base_d, inputs_nX, labels_n)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_the_states_that_a_client_has_kept_are_not_written_to(training):
    model, base_d, inputs_nX, labels_n = digits_examples()
    state = {"trained_d": base_d + 0.1, "control_d": 0.1 * base_d}
    before = {key: tensor.clone() for key, tensor in state.items()}
    extra_d = torch.ones_like(base_d)
    batches = training.batches(labels_n, rng())
    task = LocalTask(base_d=base_d, learning_rate=0.1, batches=batches, seed=0, extra_d=extra_d, state=state)
    update = training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)
    assert all(torch.equal(state[key], before[key]) for key in before)
    assert torch.equal(extra_d, torch.ones_like(base_d))
    made = [update.vector_d, *update.state.values()]
    memory = {tensor.data_ptr() for tensor in (base_d, extra_d, model.parameters_d, *state.values())}
    assert not memory & {tensor.data_ptr() for tensor in made}


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_only_declared_tensors_are_kept_and_sent(training):
    update = compute(training, *digits_examples())
    assert bool(update.state) == training.keeps_state
    assert (update.extra_d is not None) == training.needs_extra
    assert update.buffers_b is None
    assert update.kind == training.kind


def batch_normed(examples: int = 10):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))
    return examples_for(module, (3,), examples)


@pytest.mark.parametrize("training", TRAININGS, ids=repr)
def test_buffers_come_with_the_task_and_leave_with_the_update(training):
    model, base_d, inputs_nX, labels_n = batch_normed()
    base_b = model.buffers_b.clone()
    first = compute(training, model, base_d, inputs_nX, labels_n, buffers_b=base_b)
    model.buffers_b.fill_(7)
    second = compute(training, model, base_d, inputs_nX, labels_n, buffers_b=base_b)
    other = compute(training, model, base_d, inputs_nX, labels_n, buffers_b=base_b + 1)
    assert torch.equal(first.buffers_b, second.buffers_b)
    assert not torch.equal(first.buffers_b, base_b)
    assert not torch.equal(first.buffers_b, other.buffers_b)
    assert first.buffers_b.data_ptr() != model.buffers_b.data_ptr()


def test_a_gradient_moves_the_average_of_batch_norm_by_a_tenth():
    # Running mean <- 0.9 * 0 + 0.1 * mean of the batch, which here is all of the client's examples.
    model, base_d, inputs_nX, labels_n = batch_normed()
    update = compute(gradient(), model, base_d, inputs_nX, labels_n, buffers_b=model.buffers_b.clone())
    expected_4 = 0.1 * model.module[0](inputs_nX).detach().mean(dim=0)
    torch.testing.assert_close(update.buffers_b[:4], expected_4)


def test_a_model_with_buffers_is_not_trained_without_them():
    model, base_d, inputs_nX, labels_n = batch_normed()
    batches = gradient().batches(labels_n, rng())
    task = LocalTask(base_d=base_d, learning_rate=0.1, batches=batches, seed=0)
    with pytest.raises(AssertionError, match="buffers go with each version"):
        gradient().compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)


class Recorder(nn.Module):
    """One weight, and a list of the examples of each batch."""

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
    training = sgd(batch_size=batch_size, epochs=epochs)
    update = compute(training, FlatModel(recorder), torch.zeros(2), inputs, labels)
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
    training = gradient(batch_size=batch_size)
    update = compute(training, FlatModel(recorder), torch.zeros(2), inputs, labels)
    (batch,) = recorder.batches
    assert update.batch_examples == len(batch) == len(set(batch)) == min(batch_size, held)
    assert update.num_examples == held


def test_trainings_are_made_by_name_with_the_defaults_of_the_method():
    of_steps = {"batch_size": 32, "steps": 5, "epochs": None, "weight_decay": 0}
    assert gradient(batch_size=8) == Gradient(batch_size=8)
    assert sgd() == Sgd(**of_steps, momentum=0)
    assert fedprox() == FedProx(**of_steps, momentum=0, mu=0.01)
    assert moon() == Moon(**of_steps, momentum=0, mu=1, temperature=0.5)
    assert scaffold(epochs=1) == Scaffold(**of_steps | {"steps": None, "epochs": 1})
    assert list(REGISTERED) == ["fedprox", "gradient", "moon", "scaffold", "sgd"]


@pytest.mark.parametrize(
    ("name", "given_settings", "sentence"),
    [
        ("sgd", {"steps": None}, "training.steps and training.epochs are null, expected a number of one of them"),
        ("scaffold", {"momentum": 0.9}, "training 'scaffold' takes no training.momentum, got 0.9; leave it out"),
        ("sgd", {"mu": 1}, "training 'sgd' takes no training.mu, got 1.0; leave it out"),
        ("fedprox", {"temperature": 1}, "training 'fedprox' takes no training.temperature, got 1.0; leave it out"),
        ("gradient", {"steps": 1}, "training 'gradient' takes no training.steps, got 1; leave it out"),
        ("gradient", {"epochs": 2}, "training 'gradient' takes no training.epochs, got 2; leave it out"),
    ],
)
def test_a_training_that_cannot_be_made_is_refused_in_one_sentence(name, given_settings, sentence):
    with pytest.raises(UserError) as caught:
        training_of(name, **given_settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 1},
        {"momentum": 1.0},
        {"steps": 0},
        {"mu": -1},
        {"temperature": 0},
        {"batch_size": "many"},
        {"weight_decay": float("inf")},
    ],
)
def test_values_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValidationError):
        TrainingSettings(**wrong)
