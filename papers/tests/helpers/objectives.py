"""Objectives as a user writes them."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import cross_entropy

from unstale.training.measured import MainMetric
from unstale.training.objectives import Objective, Regression, Score


class Huber(Regression):
    """Another objective with the main metric of `regression`."""


class Errors(Objective):
    """Cross-entropy; the share of errors is the only metric."""

    main = MainMetric("errors", higher_is_better=False)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        return {"errors": Score(float((outputs.argmax(1) != targets).sum()), len(targets))}
