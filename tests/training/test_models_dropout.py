"""The draws of PyTorch during a task depend on the task's seed alone."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unstale.flat import FlatModel
from unstale.training.initialise import seeded
from unstale.training.models import build


def gradient_d(model: FlatModel, seed: int) -> Tensor:
    device = model.parameters_d.device
    model.module.train()
    model.gradient_d.zero_()
    with seeded(seed, device):
        logits_bC = model.module(torch.ones(4, 1, 28, 28, device=device))
        cross_entropy(logits_bC, torch.arange(4, device=device)).backward()
    return model.gradient_d.clone()


def same_task_twice(name: str, device: str = "cpu") -> None:
    model = FlatModel(build(name, (1, 28, 28), 10, seed=0), device)
    torch.rand(3, device=device)
    first_d = gradient_d(model, seed=8)
    gradient_d(model, seed=9)
    torch.rand(5, device=device)
    assert torch.equal(gradient_d(model, seed=8), first_d)
    assert torch.equal(gradient_d(model, seed=9), first_d) == (name != "lenet_gi")


@pytest.mark.parametrize("name", ["lenet_gi", "lenet_28"])
def test_the_same_task_gives_the_same_bits_after_other_tasks(name: str) -> None:
    same_task_twice(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_task_gives_the_same_bits_on_a_cuda_device() -> None:
    same_task_twice("lenet_gi", "cuda")


def test_afterwards_the_generator_continues_as_if_nothing_had_been_drawn() -> None:
    before = torch.random.get_rng_state()
    with seeded(2**63 - 1):
        torch.rand(1000)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(KeyError), seeded(1):
        raise KeyError
    assert torch.equal(torch.random.get_rng_state(), before)
