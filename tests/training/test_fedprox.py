from math import exp

import numpy as np
import pytest
import torch
from torch import nn

from support.parts_of_runs import fedprox, sgd
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.examples import TensorExamples
from unstale.training.local import LocalTask
from unstale.training.models import build
from unstale.training.objectives import Classification


def rng():
    return stream(0, Stream.BATCHES, 0, 0)


def digits_examples():
    model = FlatModel(build("digits_cnn", (1, 8, 8), 10, seed=1))
    inputs_nX = torch.from_numpy(rng().normal(size=(10, 1, 8, 8)).astype(np.float32))
    return model, inputs_nX, torch.from_numpy(rng().integers(10, size=10))


def start() -> torch.Tensor:
    return FlatModel(build("digits_cnn", (1, 8, 8), 10, seed=1)).parameters_d


def trained(training, model, inputs_nX, labels_n, base_d=None):
    batches = training.batches(labels_n, rng())
    task = LocalTask(base_d=start() if base_d is None else base_d, learning_rate=0.5, batches=batches, seed=0)
    return training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)


def test_two_steps_by_hand():
    # logreg on one number, x = 1, y = 0, eta = 1/2, mu = 1/10, from w_b = (0, 0); see 2.4.
    # Step 1: gradient (-1/2, 1/2), w - w_b = 0: w = (1/4, -1/4).
    # Step 2: p_1 = 1 / (1 + e^(1/2)), gradient (-p_1, p_1) + 1/10 (1/4, -1/4):
    # w = (1/4 + p_1 / 2 - 1/80, -(1/4 + p_1 / 2 - 1/80)).
    module = nn.Linear(1, 2, bias=False)
    update = trained(fedprox(steps=2, mu=0.1), FlatModel(module), torch.ones(1, 1), torch.tensor([0]), torch.zeros(2))
    moved = 0.25 + 0.5 / (1 + exp(0.5)) - 1 / 80
    assert update.vector_d.tolist() == pytest.approx([-moved, moved])


@pytest.mark.parametrize(
    ("fedprox", "sgd"),
    [
        (fedprox(steps=1, mu=5, momentum=0.9, weight_decay=0.1), sgd(steps=1, momentum=0.9, weight_decay=0.1)),
        (fedprox(batch_size=4, epochs=2, mu=0), sgd(batch_size=4, epochs=2)),
    ],
    ids=["one step", "mu = 0"],
)
def test_one_step_or_no_pull_is_sgd_to_the_bit(fedprox, sgd):
    examples = digits_examples()
    ours, theirs = trained(fedprox, *examples), trained(sgd, *examples)
    assert torch.equal(ours.vector_d, theirs.vector_d)
    assert ours.loss == theirs.loss


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.01)], ids=str)
def test_it_is_torch_optim_sgd_on_the_loss_with_its_quadratic_term(momentum, weight_decay):
    model, inputs_nX, labels_n = digits_examples()
    base_d = start()
    training = fedprox(batch_size=10, steps=4, mu=0.3, momentum=momentum, weight_decay=weight_decay)
    update = trained(training, model, inputs_nX, labels_n, base_d)

    reference = build("digits_cnn", (1, 8, 8), 10, seed=1)
    origin = [parameter.detach().clone() for parameter in reference.parameters()]
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.5, momentum=momentum, weight_decay=weight_decay)
    losses = []
    for _ in range(4):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(reference(inputs_nX), labels_n)
        losses.append(loss.item())
        for parameter, base in zip(reference.parameters(), origin, strict=True):
            loss = loss + 0.15 * (parameter - base).square().sum()
        loss.backward()
        optimiser.step()
    trained_d = nn.utils.parameters_to_vector(reference.parameters()).detach()
    torch.testing.assert_close(update.vector_d, base_d - trained_d, rtol=0, atol=1e-5)
    assert update.loss == pytest.approx(sum(losses) / 4, rel=1e-5)  # without the quadratic term


def test_the_stronger_the_pull_the_less_far_the_model_goes():
    examples = digits_examples()
    lengths = [trained(fedprox(steps=5, mu=mu), *examples).vector_d.norm() for mu in (0, 0.1, 1)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3
