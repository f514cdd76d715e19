"""Local training `sgd`: some steps of stochastic gradient descent on the client's own examples.

Legend: d parameters, n examples of the client.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from unstale.flat import FlatModel
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.steps import StepTraining, descend


class Sgd(StepTraining):
    """Sends u_i = w_b - w_end after k steps, or E epochs, of `torch.optim.SGD` from w_b. See `steps.descend`.

    Momentum starts anew with each task.
    Source: docs/methods/training.md#sgd
    """

    name: ClassVar[str] = "sgd"

    momentum: float

    def compute(
        self,
        model: FlatModel,
        inputs_nX: Tensor,
        labels_n: Tensor,
        task: LocalTask,
        state: Mapping[str, Tensor],  # noqa: ARG002  (nothing is kept)
    ) -> LocalUpdate:
        """See `LocalTraining.compute`."""
        return descend(
            *(model, inputs_nX, labels_n, task),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
        )
