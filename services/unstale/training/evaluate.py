"""Evaluation of a model on test examples.

Source: docs/methods/measures.md#accuracy

Legend: d parameters, M examples, b examples of one pass through the model, C classes.
"""

import torch
from torch import Tensor, split
from torch.nn.functional import cross_entropy

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.training.measured import Measured

_PASS = 250  # examples in one pass, so that activations fit a processor's cache
_SUMMED = 1000  # examples whose losses are one sum


@torch.no_grad()
def evaluate(
    model: FlatModel,
    model_d: Tensor,
    inputs_MX: Tensor,
    labels_M: Tensor,
    classes: int,
    *,
    buffers_b: Tensor | None = None,
) -> Measured:
    """Evaluate `model_d` on every example, M >= 1, all on the model's device: accuracy, and mean cross-entropy in nats.

    model: the workspace; only its float buffers are overwritten. buffers_b: [b], the version's float buffers; None for
    those of the workspace. Raises UserError for a module that writes to its parameters.
    """
    was_training = model.module.training
    bits = _bits(model_d)
    loss_sum = 0.0
    predictions = []
    with model.using(model_d, buffers_b):
        model.module.eval()
        for inputs_bX, labels_b in zip(split(inputs_MX, _SUMMED), split(labels_M, _SUMMED), strict=True):
            logits_bC = torch.cat([model.module(few_X) for few_X in split(inputs_bX, _PASS)])
            loss_sum += cross_entropy(logits_bC, labels_b, reduction="sum").item()
            predictions.append(logits_bC.argmax(dim=1))
        model.module.train(was_training)
    if _bits(model_d) != bits:
        raise UserError(
            "the model writes to its parameters when it is evaluated, expected that it reads them only; keep what it "
            "changes in buffers"
        )

    hits_M = torch.cat(predictions) == labels_M
    examples_C = torch.bincount(labels_M, minlength=classes).tolist()
    hits_C = torch.bincount(labels_M[hits_M], minlength=classes).tolist()
    return Measured(
        num_examples=len(labels_M),
        metrics={"accuracy": sum(hits_C) / len(labels_M), "loss": loss_sum / len(labels_M)},
        class_accuracy=tuple(
            hits / examples if examples else None for hits, examples in zip(hits_C, examples_C, strict=True)
        ),
    )


def _bits(model_d: Tensor) -> int:
    """A checksum that changes when the vector changes: one read, no copy."""
    return int(model_d.view(torch.int32).sum(dtype=torch.int32))
