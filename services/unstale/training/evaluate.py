"""Evaluation of a model on test examples.

Source: docs/methods/measures.md#accuracy

Legend: d parameters, b float buffers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unstale.device_memory import memory_bytes
from unstale.errors import UserError
from unstale.flat import FlatModel, on_host
from unstale.training.examples import Examples
from unstale.training.measured import Measured, check_names
from unstale.training.nests import Nest, forward, joined, split, tensors
from unstale.training.objectives import Objective, Score

MEMORY_SHARE = 128
"""On a CUDA device the largest input or output of a module has at most the device's memory divided by this."""


@torch.no_grad()
def evaluate(
    model: FlatModel, model_d: Tensor, examples: Examples, objective: Objective, *, buffers_b: Tensor | None = None
) -> Measured:
    """Evaluate `model_d` on every example, at least one, by the metrics of an objective.

    model: the workspace; only its float buffers are overwritten. buffers_b: [b], the version's float buffers; None for
    those of the workspace. Raises UserError for a module that writes to its parameters.
    """
    was_training = model.module.training
    bits = _bits(model_d)
    with model.using(model_d, buffers_b):
        model.module.eval()
        totals = _totals(model.module, examples, objective, model.buffers_b.device)
        model.module.train(was_training)
    is_changed, totals = _read(_bits(model_d) != bits, totals)
    metrics = objective.metrics(totals)
    try:
        check_names(metrics)
    except ValueError as error:
        raise UserError(f"objective {type(objective).__name__!r}: {error}") from None
    if is_changed:
        raise UserError(
            "the model writes to its parameters when it is evaluated, expected that it reads them only; keep what it "
            "changes in buffers"
        )
    return Measured(num_examples=len(examples), metrics=metrics, class_accuracy=objective.class_accuracy(totals))


def _totals(module: nn.Module, examples: Examples, objective: Objective, device: torch.device) -> dict[str, Score]:
    few = objective.pass_examples
    many = _pass_examples(module, examples, few, device) if device.type == "cuda" and len(examples) > few else few
    if many > few:
        try:
            return _scored(module, examples, objective, many, 1)
        except torch.OutOfMemoryError:  # other processes use the device
            pass
    return _scored(module, examples, objective, few, objective.score_passes)


def _scored(
    module: nn.Module, examples: Examples, objective: Objective, pass_examples: int, score_passes: int
) -> dict[str, Score]:
    totals: dict[str, Score] = {}
    for inputs, targets in examples.batches(pass_examples * score_passes):
        outputs = joined([forward(module, few) for few in split(inputs, pass_examples)])
        for name, score in objective.scores(outputs, targets).items():
            totals[name] = totals[name] + score if name in totals else score
    return totals


def _pass_examples(module: nn.Module, examples: Examples, few: int, device: torch.device) -> int:
    """Number of examples in one pass on a CUDA device, at least `few`; the same on every device of one kind.

    From the largest input or output of a module, which is measured with a few examples.
    """
    largest_bytes = 0

    def measure(nest: Nest) -> None:
        nonlocal largest_bytes
        largest_bytes = max(largest_bytes, *(tensor.nbytes for tensor in tensors(nest)), 0)

    hooks = [
        part.register_forward_hook(lambda _, inputs, outputs: measure((inputs, outputs))) for part in module.modules()
    ]
    try:
        inputs, _ = next(iter(examples.batches(few)))
        forward(module, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    fitting = few * (memory_bytes(device) // (MEMORY_SHARE * max(largest_bytes, 1)))
    return max(few, min(fitting, len(examples)))


def _read(is_changed: Tensor, totals: Mapping[str, Score]) -> tuple[bool, dict[str, Score]]:
    """The values on the host, with one wait for the device."""
    numbers = [number for score in totals.values() for number in (score.sum, score.count)]
    on_device = [each for each in numbers if isinstance(each, Tensor) and each.device == is_changed.device]
    changed, *values = on_host(is_changed, *on_device)
    read = {id(each): value for each, value in zip(on_device, values, strict=True)}
    return bool(changed), {
        name: Score(read.get(id(score.sum), score.sum), read.get(id(score.count), score.count))
        for name, score in totals.items()
    }


def _bits(model_d: Tensor) -> Tensor:
    """A checksum that changes when the vector changes: one read, no copy. A number on its device."""
    return model_d.view(torch.int32).sum(dtype=torch.int32)
