"""Whether a model may draw random numbers in training: only then a task needs a seed of its own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from support.factories import with_dropout
from support.parts_of_runs import client_task, gradient
from unstale.flat import FlatModel
from unstale.training.datasets import load
from unstale.training.initialise import draws
from unstale.training.models import MODELS, build
from unstale.training.trainer import Trainer

SMALL_ENOUGH = sorted(MODELS.keys() - {"resnet18"})


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_a_model_without_draws_does_not_change_the_generator(name: str) -> None:
    shape = MODELS[name][1] or (1, 8, 8)
    module = build(name, shape, 10, seed=0).train()
    before = torch.get_rng_state()
    cross_entropy(module(torch.ones(2, *shape)), torch.tensor([0, 1])).backward()
    drew = not torch.equal(torch.get_rng_state(), before)
    assert draws(module) == drew == (name == "lenet_gi")


def test_a_layer_that_is_not_known_or_was_changed_may_draw() -> None:
    class Noise(nn.Identity):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + torch.rand_like(inputs)

    assert draws(nn.Sequential(nn.Linear(2, 2), Noise()))
    plain = nn.Sequential(nn.Linear(2, 2))
    assert not draws(plain)
    with plain[0].register_forward_hook(lambda *_: None):
        assert draws(plain)
    plain[0].forward = lambda inputs: inputs + torch.rand_like(inputs)  # type: ignore[method-assign]
    assert draws(plain)


def test_a_task_of_a_model_that_draws_is_the_same_bits_each_time_and_no_two_tasks_draw_the_same() -> None:
    digits = load("digits")
    model = FlatModel(with_dropout(digits.input_shape, 10))
    base_d = model.parameters_d.clone()
    everything = torch.arange(len(digits.train.labels_N)).numpy()
    trainer = Trainer(digits, [everything[:4]], model, gradient(), seed=0)
    first = trainer.train(client_task(0, 0, base_d, 0.1))
    torch.rand(3)
    assert torch.equal(trainer.train(client_task(0, 0, base_d, 0.1)).vector_d, first.vector_d)
    # All four examples are in every mini-batch, so only dropout differs.
    assert not torch.allclose(trainer.train(client_task(0, 1, base_d, 0.1)).vector_d, first.vector_d)
