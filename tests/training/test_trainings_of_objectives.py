"""Each local training with each objective and each form of inputs, against PyTorch's optimiser on the module itself."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from support.parts_of_runs import fedprox, gradient, scaffold, sgd
from unstale import seeds
from unstale.flat import FlatModel
from unstale.settings.learning import ObjectiveSettings
from unstale.training.examples import Examples, LazyExamples, TensorExamples
from unstale.training.initialise import seeded
from unstale.training.local import LocalTask, LocalTraining, LocalUpdate
from unstale.training.nests import Nest
from unstale.training.objectives import Objective, create

N, RATE = 11, 0.25
DRAWN = torch.Generator().manual_seed(1)


def normal(*shape: int) -> Tensor:
    return torch.randn(N, *shape, generator=DRAWN)


def integers(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, high, (N, *shape), generator=DRAWN, dtype=dtype)


class Tokens(nn.Module):
    """The next token of each token; a mapping of integer tensors is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.embedding(tokens) * mask.unsqueeze(-1))


class Pair(nn.Module):
    """A column, chosen by an integer, and numbers; a tuple is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.columns, self.numbers = nn.Embedding(4, 2), nn.Linear(3, 2)

    def forward(self, numbers: Tensor, column: Tensor) -> Tensor:
        return self.numbers(numbers) + self.columns(column.long())


class Nested(nn.Module):
    """A pair within a mapping is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, pair: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        return scale * self.pair(*pair)


class Adapted(nn.Module):
    """A frozen layer, in half precision, and an adapter of low rank beside it, as PEFT makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 2).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(inputs.bfloat16()).float() + self.up(self.down(inputs))


@dataclass(frozen=True)
class Case:
    """A model, examples, and the loss of a batch of them, written without nests and objectives."""

    objective: str
    make: Callable[[], nn.Module]
    inputs: Nest
    targets: Tensor
    loss: Callable[[nn.Module, Tensor], Tensor]  # of the examples at these indices
    one: Callable[[int], Any]  # inputs of an example, for a data set that is read when needed

    @property
    def made(self) -> Objective:
        return create(ObjectiveSettings(name=self.objective))


def plain(objective: str, make: Callable[[], nn.Module], x: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> Case:
    return Case(objective, make, x, y, lambda module, at: loss(module(x[at]), y[at]), lambda i: x[i])


X, Y, COLUMN, SCALE = normal(3), normal(2), integers(4, dtype=torch.uint8), normal(1)
TOKENS, MASK, FOLLOWING = integers(5, 4), integers(2, 4, dtype=torch.bool), integers(5, 4)

CASES = {
    "regression": plain("regression", lambda: nn.Linear(3, 2), X, Y, mse_loss),
    "binary": plain(
        "binary",
        lambda: nn.Linear(3, 1),
        X,
        integers(2),
        lambda outputs, targets: binary_cross_entropy_with_logits(outputs[:, 0], targets.float()),
    ),
    "classification": plain("classification", lambda: nn.Linear(3, 4), X, integers(4), cross_entropy),
    "segmentation": plain(
        "segmentation", lambda: nn.Conv2d(1, 3, 3), normal(1, 4, 4), integers(3, 2, 2), cross_entropy
    ),
    "a mapping of integer tensors": Case(
        "language-model",
        Tokens,
        {"tokens": TOKENS, "mask": MASK},
        FOLLOWING,
        lambda module, at: cross_entropy(module(TOKENS[at], MASK[at]).flatten(0, 1), FOLLOWING[at].flatten()),
        lambda i: {"tokens": TOKENS[i], "mask": MASK[i]},
    ),
    "a tuple": Case(
        "regression",
        Pair,
        (X, COLUMN),
        Y,
        lambda module, at: mse_loss(module(X[at], COLUMN[at]), Y[at]),
        lambda i: (X[i], COLUMN[i]),
    ),
    "a nest": Case(
        "regression",
        Nested,
        {"pair": (X, COLUMN), "scale": SCALE},
        Y,
        lambda module, at: mse_loss(SCALE[at] * module.pair(X[at], COLUMN[at]), Y[at]),  # type: ignore[operator]
        lambda i: {"pair": (X[i], COLUMN[i]), "scale": SCALE[i]},
    ),
    "frozen parameters": plain("regression", Adapted, X, Y, mse_loss),
}

TRAININGS = {
    "gradient": gradient(batch_size=4),
    "sgd": sgd(steps=5, batch_size=4, momentum=0.5, weight_decay=0.1),
    "fedprox": fedprox(epochs=2, batch_size=4, mu=0.7),
    "scaffold": scaffold(steps=5, batch_size=4),
}


class Listed:
    """A data set that is read when needed."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self._case.one(index), self._case.targets[index]


def vector(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def by_hand(training: LocalTraining, case: Case, module: nn.Module, task: LocalTask) -> tuple[Tensor, float]:
    """The update of a module, and its mean loss, by PyTorch's optimiser."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    base = [parameter.detach().clone() for parameter in trained]
    sizes = [parameter.numel() for parameter in trained]
    optimiser = torch.optim.SGD(
        trained,
        lr=RATE,
        momentum=getattr(training, "momentum", 0.0),
        weight_decay=getattr(training, "weight_decay", 0.0),
    )
    losses = []
    for batch in task.batches:
        optimiser.zero_grad()
        loss = case.loss(module, batch)
        loss.backward()
        losses.append(loss.item())
        if training.kind == "gradient":
            return vector([parameter.grad for parameter in trained if parameter.grad is not None]), losses[0]
        shifts: list[Tensor] = [torch.zeros(())] * len(trained)
        if training.name == "fedprox":
            shifts = [0.7 * (p.detach() - b) for p, b in zip(trained, base, strict=True)]
        if task.extra_d is not None:
            difference_d = task.extra_d - task.state["control_d"]
            parts = torch.split(difference_d, sizes)
            shifts = [part.reshape(p.shape) for part, p in zip(parts, trained, strict=True)]
        for parameter, shift in zip(trained, shifts, strict=True):
            assert parameter.grad is not None
            parameter.grad += shift
        optimiser.step()
    return vector(base) - vector(trained), sum(losses) / len(losses)


def computed(training: LocalTraining, case: Case, examples: Examples) -> tuple[LocalUpdate, Tensor, float]:
    """The update, and the one by hand with its loss."""
    with seeded(0):
        module = case.make()
    own = deepcopy(module)
    model = FlatModel(module)
    d, extra = model.dimension, {}
    if training.needs_extra:
        controls = torch.randn(2, d, generator=torch.Generator().manual_seed(4)) / 10
        extra = {"extra_d": controls[0], "state": {"control_d": controls[1]}}
    batches = training.batches(examples, seeds.stream(3, seeds.Stream.BATCHES, 0, 0))
    task = LocalTask(base_d=model.parameters_d.clone(), learning_rate=RATE, batches=batches, seed=None, **extra)  # type: ignore[arg-type]
    update = training.compute(model, examples, case.made, task)
    assert d == sum(parameter.numel() for parameter in own.parameters() if parameter.requires_grad)
    for (name, frozen), first in zip(module.named_parameters(), own.parameters(), strict=True):
        assert frozen.requires_grad or torch.equal(frozen, first), name
    return update, *by_hand(training, case, own, task)


@pytest.mark.parametrize("is_lazy", [False, True], ids=["tensors", "read when needed"])
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("name", CASES)
def test_an_update_is_that_of_the_optimiser_of_pytorch(name: str, training: str, is_lazy: bool) -> None:
    case, chosen = CASES[name], TRAININGS[training]
    examples: Examples = TensorExamples(case.inputs, case.targets)
    if is_lazy:
        examples = LazyExamples(Listed(case), np.arange(N), torch.device("cpu"))  # type: ignore[arg-type]
    update, expected_d, loss = computed(chosen, case, examples)
    torch.testing.assert_close(update.vector_d, expected_d, rtol=1e-4, atol=1e-6)
    assert update.vector_d.abs().max() > 1e-3
    assert update.loss == pytest.approx(loss, rel=1e-5)
    if training == "scaffold":
        assert update.extra_d is not None
        controls = torch.randn(2, len(expected_d), generator=torch.Generator().manual_seed(4)) / 10
        torch.testing.assert_close(update.extra_d, expected_d / (5 * RATE) - controls[0], rtol=1e-4, atol=1e-5)
