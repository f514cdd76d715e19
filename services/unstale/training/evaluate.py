"""Evaluation of a model on test examples.

Source: docs/methods/measures.md#accuracy

Legend: d parameters, b float buffers.
"""

import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.training.examples import Examples
from unstale.training.measured import Measured, check_names
from unstale.training.nests import forward, joined, split
from unstale.training.objectives import Objective, Score


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
    totals: dict[str, Score] = {}
    with model.using(model_d, buffers_b):
        model.module.eval()
        for inputs, targets in examples.batches(objective.pass_examples * objective.score_passes):
            outputs = joined([forward(model.module, few) for few in split(inputs, objective.pass_examples)])
            for name, score in objective.scores(outputs, targets).items():
                totals[name] = totals[name] + score if name in totals else score
        model.module.train(was_training)
    metrics = objective.metrics(totals)
    try:
        check_names(metrics)
    except ValueError as error:
        raise UserError(f"objective {type(objective).__name__!r}: {error}") from None
    if _bits(model_d) != bits:
        raise UserError(
            "the model writes to its parameters when it is evaluated, expected that it reads them only; keep what it "
            "changes in buffers"
        )
    return Measured(num_examples=len(examples), metrics=metrics, class_accuracy=objective.class_accuracy(totals))


def _bits(model_d: Tensor) -> int:
    """A checksum that changes when the vector changes: one read, no copy."""
    return int(model_d.view(torch.int32).sum(dtype=torch.int32))
