"""Evaluation on a simulated CUDA device: one wait, in passes as large as its memory allows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from support.simulated_device import CUDA, SimulatedDevice, simulated_device
from unstale.flat import FlatModel, on_host
from unstale.training import evaluate as evaluate_module
from unstale.training.evaluate import MEMORY_SHARE, evaluate
from unstale.training.examples import TensorExamples
from unstale.training.measured import Measured
from unstale.training.objectives import OBJECTIVES, Objective, Score
from unstale.training.objectives.shapes import class_counts

EXAMPLES, NUMBERS = 700, 6
MODEL_D = torch.linspace(-1, 1, NUMBERS)


class Scaled(nn.Module):
    """Multiplies inputs [b, 6] by the model. sizes: of its passes. most: passes of more examples have no memory."""

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        super().__init__()
        self.shape, self.most = shape, most
        self.model_d = MODEL_D
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        if len(inputs) > self.most:
            raise torch.OutOfMemoryError
        return (inputs * self.model_d).reshape(-1, *self.shape)


class Model:
    """The part of `FlatModel` that an evaluation uses: parameters on the simulated device are no `nn.Parameter`."""

    def __init__(self, module: Scaled, where: torch.device) -> None:
        self.module, self.buffers_b = module, torch.empty(0, device=where)

    @contextmanager
    def using(self, model_d: Tensor, _: Tensor | None) -> Iterator[None]:
        self.module.model_d = model_d
        yield


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {  # of outputs, of targets, classes
    "classification": ((NUMBERS,), (), NUMBERS),
    "binary": ((NUMBERS,), (NUMBERS,), 2),
    "regression": ((NUMBERS,), (NUMBERS,), 50),
    "language-model": ((2, 3), (2,), 3),
    "segmentation": ((2, 3, 1), (3, 1), 2),
}


def measured(name: str, where: torch.device, most: int = EXAMPLES) -> tuple[Measured, list[int]]:
    """The evaluation by an objective, and the sizes of its passes."""
    outputs, targets, classes = SHAPES[name]
    generator = torch.Generator().manual_seed(1)
    inputs_nX = torch.randn(EXAMPLES, NUMBERS, generator=generator)
    targets_n = torch.randint(classes, (EXAMPLES, *targets), generator=generator)
    module = Scaled(outputs, most)
    model = cast(FlatModel, Model(module, where))
    examples = TensorExamples(inputs_nX.to(where), targets_n.to(where))
    return evaluate(model, MODEL_D.to(where), examples, OBJECTIVES[name]()), module.sizes


def memory(monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    """Gives the device memory for so many examples in a pass."""
    size_bytes = MEMORY_SHARE * 4 * NUMBERS * examples
    monkeypatch.setattr(evaluate_module, "memory_bytes", lambda _: size_bytes)


@pytest.fixture
def copies() -> Iterator[SimulatedDevice]:
    with simulated_device() as counted:
        yield counted


@pytest.mark.parametrize("name", SHAPES)
def test_an_evaluation_waits_once_and_equals_the_one_on_the_cpu(
    name: str, copies: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = measured(name, torch.device("cpu"))
    memory(monkeypatch, 10 * EXAMPLES)
    inputs_waits = 3  # inputs, targets and model
    on_device, sizes = measured(name, CUDA)
    assert copies.waits == 1 + inputs_waits
    few = OBJECTIVES[name].pass_examples
    assert sizes == [few, EXAMPLES]
    assert on_device.metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert on_device.class_accuracy == expected.class_accuracy


def test_every_objective_is_evaluated_on_the_device() -> None:
    assert SHAPES.keys() == OBJECTIVES.keys()


@pytest.mark.parametrize(("fitting", "passes"), [(0, [250, 250, 200]), (499, [250, 250, 200]), (500, [500, 200])])
def test_passes_are_multiples_of_the_objectives_that_fit_the_memory(
    fitting: int, passes: list[int], copies: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, fitting)
    _, sizes = measured("classification", CUDA)
    assert sizes == [250, *passes]  # the first pass is measured
    assert copies.waits == 4


def test_passes_without_enough_memory_are_repeated_with_fewer_examples(
    copies: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = measured("classification", torch.device("cpu"))
    memory(monkeypatch, 10 * EXAMPLES)
    on_device, sizes = measured("classification", CUDA, most=250)
    assert sizes == [250, EXAMPLES, 250, 250, 200]
    assert on_device.metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert copies.waits == 4


def test_on_the_cpu_passes_are_those_of_the_objective() -> None:
    assert measured("classification", torch.device("cpu"))[1] == [250, 250, 200]


def test_tensors_of_several_types_and_shapes_are_read_with_one_wait(copies: SimulatedDevice) -> None:
    given = [torch.tensor(True), torch.arange(9)[::3], torch.randn(2, 3).double(), torch.randn(5), torch.empty(0, 2)]
    on_device = [tensor.to(CUDA) for tensor in given]
    copies.clear()
    for tensor, expected in zip(on_host(*on_device), given, strict=True):
        assert torch.equal(tensor, expected)
        assert tensor.dtype == expected.dtype
    assert copies.waits == 1


def test_classes_are_counted_on_the_device_as_on_the_cpu(copies: SimulatedDevice) -> None:
    classes, counts = torch.tensor([[4, 0, 0], [2, -100, 4]]), torch.tensor([[True, True, False], [True, False, True]])
    expected = [1, 0, 1, 0, 2]
    assert class_counts(classes, 5, counts).tolist() == expected
    on_device = [classes.to(CUDA), counts.to(CUDA)]
    copies.clear()
    counted = class_counts(on_device[0], 5, on_device[1])
    assert copies.waits == 0
    assert counted.cpu().tolist() == expected


def test_an_objective_that_gives_floats_is_evaluated_on_the_device(
    copies: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Floats(Objective):
        main = OBJECTIVES["regression"].main
        pass_examples = 700

        def loss(self, outputs: Any, targets: Any) -> Tensor:
            return (outputs - targets).square().mean()

        def scores(self, outputs: Any, targets: Any) -> dict[str, Score]:
            return {"loss": Score(self.loss(outputs, targets).item() * len(targets), len(targets))}

    monkeypatch.setitem(OBJECTIVES, "regression", Floats)
    expected, _ = measured("regression", torch.device("cpu"))
    on_device, _ = measured("regression", CUDA)
    assert on_device.metrics == pytest.approx(expected.metrics)
    assert copies.waits == 5
