from math import log

import numpy as np
import pytest
import torch
from torch import nn

from support.parts_of_runs import moon, sgd
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.examples import TensorExamples
from unstale.training.local import LocalTask
from unstale.training.models import build
from unstale.training.objectives import Classification

MU, TEMPERATURE, ETA = 3.0, 0.4, 0.01


def rng(number: int = 0):
    return stream(0, Stream.BATCHES, 0, number)


def two_layers(inputs: int = 3, width: int = 4, classes: int = 3) -> FlatModel:
    """z = relu(A x), logits B z."""
    return FlatModel(
        nn.Sequential(nn.Linear(inputs, width, bias=False), nn.ReLU(), nn.Linear(width, classes, bias=False))
    )


def compute(training, model, inputs_nX, labels_n, base_d, state, seed=0):
    task = LocalTask(
        base_d=base_d,
        learning_rate=ETA,
        batches=training.batches(labels_n, rng()),
        seed=seed,
        buffers_b=model.buffers_b.clone() if model.buffers_b.numel() else None,
        state=state,
    )
    return training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)


def cosine(a_f, b_f):
    """1.5: 0 where a length is 0."""
    product = np.linalg.norm(a_f) * np.linalg.norm(b_f)
    return 0.0 if product <= 1e-12 else float(a_f @ b_f) / product


def loss_in_float64(w_d, glob_d, prev_d, inputs_n3, labels_n):
    """2.5 as it is written, for `two_layers`."""

    def z(model_d, inputs_3):
        return np.maximum(model_d[:12].reshape(4, 3) @ inputs_3, 0)

    total = 0.0
    for inputs_3, label in zip(inputs_n3, labels_n, strict=True):
        own_4 = z(w_d, inputs_3)
        logits_3 = w_d[12:].reshape(3, 4) @ own_4
        entropy = log(np.exp(logits_3).sum()) - logits_3[label]
        to_glob = np.exp(cosine(own_4, z(glob_d, inputs_3)) / TEMPERATURE)
        to_prev = np.exp(cosine(own_4, z(prev_d, inputs_3)) / TEMPERATURE)
        total += entropy - MU * log(to_glob / (to_glob + to_prev))
    return total / len(labels_n)


def test_its_gradient_is_that_of_the_equation_by_finite_differences():
    # The first step, from w_b: u / eta is the gradient of the loss, z_glob and z_prev held fixed.
    draws = rng(1)
    base_d, prev_d = draws.normal(size=24), draws.normal(size=24)
    inputs_n3, labels_n = draws.normal(size=(6, 3)), draws.integers(3, size=6)
    expected_d = np.zeros(24)
    for place in range(24):
        step_d = np.zeros(24)
        step_d[place] = 1e-6
        up, down = (
            loss_in_float64(w_d, base_d, prev_d, inputs_n3, labels_n) for w_d in (base_d + step_d, base_d - step_d)
        )
        expected_d[place] = (up - down) / 2e-6
    update = compute(
        moon(batch_size=6, steps=1, mu=MU, temperature=TEMPERATURE),
        two_layers(),
        torch.from_numpy(inputs_n3).float(),
        torch.from_numpy(labels_n),
        torch.from_numpy(base_d).float(),
        {"trained_d": torch.from_numpy(prev_d).float()},
    )
    np.testing.assert_allclose(update.vector_d.numpy() / ETA, expected_d, rtol=1e-3, atol=1e-4)
    assert np.abs(expected_d[:12]).max() > 0.1


@pytest.mark.parametrize("epochs", [1, 3])
def test_some_epochs_are_those_of_autograd_on_the_equation(epochs):
    draws = rng(2)
    base_d, prev_d = (torch.from_numpy(draws.normal(size=24)).float() for _ in range(2))
    inputs_n3 = torch.from_numpy(draws.normal(size=(10, 3))).float()
    labels_n = torch.from_numpy(draws.integers(3, size=10))
    update = compute(
        moon(batch_size=4, epochs=epochs, mu=MU, temperature=TEMPERATURE, momentum=0.5, weight_decay=0.1),
        two_layers(),
        inputs_n3,
        labels_n,
        base_d,
        {"trained_d": prev_d},
    )

    models = [two_layers().module for _ in range(3)]
    for module, start_d in zip(models, (base_d, base_d, prev_d), strict=True):
        nn.utils.vector_to_parameters(start_d.clone(), module.parameters())
    own = models[0]
    optimiser = torch.optim.SGD(own.parameters(), lr=ETA, momentum=0.5, weight_decay=0.1)
    draws, losses = rng(), []
    for _ in range(epochs):
        for batch_b in torch.from_numpy(draws.permutation(10)).split(4):
            z_bf, z_glob_bf, z_prev_bf = (torch.relu(module[0](inputs_n3[batch_b])) for module in models)
            similarity = nn.functional.cosine_similarity
            pair_b2 = torch.stack((similarity(z_bf, z_glob_bf), similarity(z_bf, z_prev_bf)), dim=1)
            entropy = nn.functional.cross_entropy(own[2](z_bf), labels_n[batch_b])
            first_b = torch.zeros(len(batch_b), dtype=torch.int64)
            optimiser.zero_grad()
            (entropy + MU * nn.functional.cross_entropy(pair_b2 / TEMPERATURE, first_b)).backward()
            optimiser.step()
            losses.append(entropy.item())
    trained_d = nn.utils.parameters_to_vector(own.parameters()).detach()
    torch.testing.assert_close(update.vector_d, base_d - trained_d, rtol=1e-4, atol=1e-6)
    assert update.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)  # without the contrastive term


def digits_examples():
    model = FlatModel(build("digits_cnn", (1, 8, 8), 10, seed=1))
    inputs_nX = torch.from_numpy(rng(3).normal(size=(10, 1, 8, 8)).astype(np.float32))
    return model, inputs_nX, torch.from_numpy(rng(3).integers(10, size=10)), model.parameters_d.clone()


def test_the_first_participation_is_sgd_to_the_bit_and_keeps_the_trained_model():
    examples = digits_examples()
    ours = compute(moon(batch_size=4, epochs=2, momentum=0.9), *examples, {})
    theirs = compute(sgd(batch_size=4, epochs=2, momentum=0.9), *examples, {})
    assert torch.equal(ours.vector_d, theirs.vector_d)
    assert list(ours.state) == ["trained_d"]
    torch.testing.assert_close(ours.state["trained_d"], examples[-1] - ours.vector_d)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_the_term_has_a_weight_and_no_gradient_where_both_frozen_models_are_one(mu):
    # mu = 0: no term. w_prev = w_b: cos(z, z_glob) = cos(z, z_prev) at every z, so l_con is ln 2 throughout.
    examples = digits_examples()
    base_d = examples[-1]
    previous_d = base_d.clone() if mu else base_d + 1
    ours = compute(moon(steps=3, mu=mu), *examples, {"trained_d": previous_d})
    assert torch.equal(ours.vector_d, compute(sgd(steps=3), *examples, {}).vector_d)


@pytest.mark.parametrize("zero", ["own and global", "previous"])
def test_a_representation_of_zero_has_a_cosine_of_zero(zero):
    # A = 0 in w_b: z = 0 and cos = 0 for every example, so l_con = ln 2 without a gradient, as long as z stays 0; and
    # A = 0 in w_prev: cos(z, z_prev) = 0, l_con = ln(1 + e^(-cos(z, z_glob) / T)), which is finite.
    model = two_layers()
    base_d = torch.from_numpy(rng(4).normal(size=24)).float()
    previous_d = base_d.clone()
    (base_d if zero == "own and global" else previous_d)[:12] = 0
    inputs_n3, labels_n = torch.ones(4, 3), torch.tensor([0, 1, 2, 0])
    ours = compute(moon(steps=2), model, inputs_n3, labels_n, base_d, {"trained_d": previous_d})
    theirs = compute(sgd(steps=2), model, inputs_n3, labels_n, base_d, {})
    assert ours.vector_d.isfinite().all()
    assert torch.equal(ours.vector_d, theirs.vector_d) == (zero == "own and global")


def test_a_representation_of_zero_has_no_gradient_that_is_not_a_number():
    # Without a ReLU after it, gradients reach z = 0: the first step, at A = 0, is that of sgd.
    model = FlatModel(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 3, bias=False)))
    base_d = torch.from_numpy(rng(4).normal(size=24)).float()
    previous_d = base_d.clone()
    base_d[:12] = 0
    examples = model, torch.ones(4, 3), torch.tensor([0, 1, 2, 0]), base_d
    ours = compute(moon(steps=1), *examples, {"trained_d": previous_d})
    assert torch.equal(ours.vector_d, compute(sgd(steps=1), *examples, {}).vector_d)


class Witness(nn.Module):
    """A model that writes down which examples it was shown, and in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 2), nn.Linear(2, 2)
        self.shown: dict[bool, list[int]] = {True: [], False: []}

    def forward(self, inputs_b1):
        self.shown[self.training] += inputs_b1.flatten().int().tolist()
        return self.head(self.body(inputs_b1))


@pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 2}], ids=str)
def test_each_frozen_model_is_shown_each_example_of_the_task_once_and_in_evaluation_mode(length):
    witness = Witness()
    model = FlatModel(witness)
    base_d = model.parameters_d.clone()
    inputs_n1 = torch.arange(10).float()[:, None]
    compute(
        moon(batch_size=3, **length),
        model,
        inputs_n1,
        torch.zeros(10, dtype=torch.int64),
        base_d,
        {"trained_d": base_d + 1},
    )
    assert sorted(witness.shown[False]) == sorted([*set(witness.shown[True])] * 2)
    assert len(witness.shown[True]) == (30 if "epochs" in length else 6)


def test_a_linear_model_has_no_representation_to_train():
    # z is the input itself (2.5 for logreg): l_con is a constant.
    model = FlatModel(build("logreg", (5,), 3, seed=0))
    base_d = model.parameters_d.clone()
    inputs_n5 = torch.from_numpy(rng(5).normal(size=(6, 5)).astype(np.float32))
    examples = model, inputs_n5, torch.tensor([0, 1, 2] * 2), base_d
    ours = compute(moon(steps=3), *examples, {"trained_d": base_d + 1})
    assert torch.equal(ours.vector_d, compute(sgd(steps=3), *examples, {}).vector_d)


def test_the_previous_model_is_looked_at_with_the_buffers_it_was_trained_to():
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    base_d, start_b = model.parameters_d.clone(), model.buffers_b.clone()
    inputs_n3 = torch.from_numpy(rng(6).normal(size=(6, 3)).astype(np.float32))
    examples = model, inputs_n3, torch.tensor([0, 1, 2] * 2)
    first = compute(moon(steps=3), *examples, base_d, {})
    assert torch.equal(first.state["trained_buffers_b"], first.buffers_b)
    model.load(base_d, start_b)
    moved = {**first.state, "trained_buffers_b": first.state["trained_buffers_b"] + 1}
    second = compute(moon(steps=3), *examples, base_d, dict(first.state))
    model.load(base_d, start_b)
    assert not torch.equal(second.vector_d, compute(moon(steps=3), *examples, base_d, moved).vector_d)


def test_a_model_without_a_last_linear_layer_is_refused_in_one_sentence():
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()))
    base_d = model.parameters_d.clone()
    with pytest.raises(UserError, match="does not end in a linear layer"):
        compute(moon(steps=1), model, torch.ones(1, 1, 8, 8), torch.tensor([0]), base_d, {"trained_d": base_d + 1})
