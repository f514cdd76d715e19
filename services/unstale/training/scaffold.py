"""Local training `scaffold`: steps that are corrected by how this client's gradients differ from everyone's.

Legend: d parameters, n examples of the client.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from unstale.flat import FlatModel
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.steps import StepTraining, descend

CONTROL = "control_d"


class Scaffold(StepTraining):
    """k steps from w_b without momentum, then the client's new control variate (option II):

        y <- y - eta_l * (grad(y) - c_i + c)
        u_i = w_b - y;   dc_i = u_i / (k * eta_l) - c;   c_i <- c_i + dc_i;   sends (u_i, dc_i)

    c: the server's control variate as downloaded, `task.extra_d`; dc_i: `extra_d` of the update. c_i: kept by the
    client, 0 at first; dc_i is added to it when the server has counted it, and only then. Weight decay is part of grad.
    Source: SCAFFOLD (Karimireddy et al., ICML 2020), docs/methods/training.md#scaffold
    """

    name: ClassVar[str] = "scaffold"
    needs_extra: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    state_adds: ClassVar[bool] = True

    def compute(
        self,
        model: FlatModel,
        inputs_nX: Tensor,
        labels_n: Tensor,
        task: LocalTask,
        state: Mapping[str, Tensor],
    ) -> LocalUpdate:
        """See `LocalTraining.compute`."""
        assert task.extra_d is not None, (
            "scaffold trains with the control variate that its policy sends along"
        )
        device = model.parameters_d.device
        server_d = task.extra_d.to(device)
        shift_d = server_d - state[CONTROL].to(device) if CONTROL in state else server_d
        update = descend(
            *(model, inputs_nX, labels_n, task),
            weight_decay=self.weight_decay,
            gradient_hook=lambda gradient_d, _: gradient_d.add_(shift_d),
        )
        change_d = update.vector_d.div(update.steps * update.learning_rate).sub_(server_d)
        return replace(update, extra_d=change_d, state={CONTROL: change_d})
