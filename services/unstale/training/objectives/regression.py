"""Regression: prediction of numbers.

Legend: b examples of a batch, F numbers of a target.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from unstale.training.measured import MainMetric
from unstale.training.objectives.objective import Objective, Score
from unstale.training.objectives.shapes import fitted


class Regression(Objective):
    """Mean squared error of outputs and targets of the same shape, such as [b] or [b, F]: loss, mae, r2.

        loss = mean (y' - y)^2,   mae = mean |y' - y|,   R^2 = 1 - sum (y' - y)^2 / sum (y - mean y)^2

    The mean of y is that of each of the F numbers; the sums are over all of them. R^2 of constant targets is NaN.
    Source: docs/methods/objectives.md#regression
    """

    main: ClassVar[MainMetric] = MainMetric("mae", higher_is_better=False)

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(fitted(outputs, targets), targets.to(outputs.dtype))

    @override
    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        targets_bF = targets.reshape(len(targets), -1).double()
        error_bF = fitted(outputs, targets).reshape(len(targets), -1).double() - targets_bF
        count_F = torch.full_like(targets_bF[0], len(targets))
        return {
            "loss": Score(error_bF.square().sum(0), count_F),
            "mae": Score(error_bF.abs().sum(0), count_F),
            "target": Score(targets_bF.sum(0), count_F),
            "target_square": Score(targets_bF.square().sum(0), count_F),
        }

    @override
    def metrics(self, totals: Mapping[str, Score]) -> Mapping[str, float]:
        target, square = totals["target"], totals["target_square"]
        assert isinstance(target.sum, Tensor)
        around_F = torch.as_tensor(square.sum) - target.sum.square() / target.count
        around, error = float(around_F.sum()), float(torch.as_tensor(totals["loss"].sum).sum())
        return {
            "mae": totals["mae"].mean,
            "loss": totals["loss"].mean,
            "r2": 1 - error / around if around > 0 else float("nan"),
        }
