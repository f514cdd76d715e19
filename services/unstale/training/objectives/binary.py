"""Classification of each example as one of two classes, by one logit.

Legend: b examples of a batch.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from unstale.training.measured import MainMetric
from unstale.training.objectives.objective import Objective, Score, scalar
from unstale.training.objectives.shapes import fitted


class Binary(Objective):
    """Binary cross-entropy of logits and targets of the same shape, such as [b], from 0 to 1: accuracy, loss.

    The class is 1 where the logit is above 0, or the target above 1/2. With several numbers for each example, each one
    counts alike.
    Source: docs/methods/objectives.md#binary
    """

    main: ClassVar[MainMetric] = MainMetric("accuracy", higher_is_better=True)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(fitted(outputs, targets), targets.to(outputs.dtype))

    @override
    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        logits = fitted(outputs, targets)
        hits = scalar(((logits > 0) == (targets > 0.5)).sum())
        entropy = binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return {
            "accuracy": Score(hits, targets.numel()),
            "loss": Score(scalar(entropy.double().sum()), targets.numel()),
        }
