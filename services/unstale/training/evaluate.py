"""How good a model is on examples it was not trained on.

Source: docs/methods/measures.md#accuracy

Legend: d parameters, M examples, b examples of one pass through the model, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unstale.errors import UserError
from unstale.flat import FlatModel

_AT_A_TIME = 250  # examples in one pass: what a network makes of them on its way fits a processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """accuracy: correct / examples, in [0, 1]. loss: mean cross-entropy over all examples, nats.
    class_accuracy: for each class the accuracy on its own examples, None where there are none. examples: how
    many were looked at.
    """

    accuracy: float
    loss: float
    class_accuracy: tuple[float | None, ...]
    examples: int


@torch.no_grad()
def evaluate(
    model: FlatModel,
    model_d: Tensor,
    inputs_MX: Tensor,
    labels_M: Tensor,
    classes: int,
    *,
    buffers_b: Tensor | None = None,
    batch_size: int = 1000,
) -> Evaluation:
    """Evaluate `model_d` on every example, the last partial batch included; `model` is the workspace, of which only
    the float buffers are overwritten.

    model_d: [d] float32, not copied, and not to be written to by the module. inputs_MX: [M, ...] float32 and labels_M:
    [M] int64 in [0, classes), M >= 1, on the model's device. buffers_b: [b] float32, the version's float buffers; None
    takes those that the workspace has. batch_size: examples whose losses are added up at a time. Raises UserError for a
    module that writes to its parameters.
    """
    was_training = model.module.training
    bits = _bits(model_d)
    loss_sum = 0.0
    predictions = []
    with model.using(model_d, buffers_b):
        model.module.eval()
        for inputs_bX, labels_b in zip(
            torch.split(inputs_MX, batch_size), torch.split(labels_M, batch_size), strict=True
        ):
            logits_bC = torch.cat([model.module(few_X) for few_X in torch.split(inputs_bX, _AT_A_TIME)])
            loss_sum += cross_entropy(logits_bC, labels_b, reduction="sum").item()
            predictions.append(logits_bC.argmax(dim=1))
        model.module.train(was_training)
    if _bits(model_d) != bits:
        raise UserError(
            "the model writes to its parameters when it is evaluated, expected that it reads them only; keep what it "
            "changes in buffers"
        )

    hits_M = torch.cat(predictions) == labels_M
    held_C = torch.bincount(labels_M, minlength=classes).tolist()
    hits_C = torch.bincount(labels_M[hits_M], minlength=classes).tolist()
    return Evaluation(
        accuracy=sum(hits_C) / len(labels_M),
        loss=loss_sum / len(labels_M),
        class_accuracy=tuple(
            hits / held if held else None for hits, held in zip(hits_C, held_C, strict=True)
        ),
        examples=len(labels_M),
    )


def _bits(model_d: Tensor) -> int:
    """What changes when somebody writes to a vector: one read of it, and no copy."""
    return int(model_d.view(torch.int32).sum(dtype=torch.int32))
