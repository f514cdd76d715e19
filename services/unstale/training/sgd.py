"""Local training `sgd`: stochastic gradient descent on the client's own examples."""

from typing import ClassVar

from unstale.training.steps import StepTraining


class Sgd(StepTraining):
    """Sends u_i = w_b - w_end after k steps, or E epochs, of `torch.optim.SGD` from w_b. See `steps.descend`.

    Momentum starts at zero in each task.
    Source: docs/methods/training.md#sgd
    """

    name: ClassVar[str] = "sgd"

    momentum: float
