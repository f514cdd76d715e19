"""Local training `scaffold`: steps corrected by the difference between this client's gradients and all clients'.

Legend: d parameters, n examples of the client.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.training.local import LocalTask, LocalUpdate
from unstale.training.steps import GradientHook, StepTraining

CONTROL = "control_d"


class Scaffold(StepTraining):
    """k steps from w_b without momentum, then the client's new control variate (option II):

        y <- y - eta_l * (grad(y) - c_i + c)
        u_i = w_b - y;   dc_i = u_i / (k * eta_l) - c;   c_i <- c_i + dc_i;   sends (u_i, dc_i)

    c: the server's control variate as downloaded, `task.extra_d`. dc_i: `extra_d` of the update. c_i: kept by the
    client, 0 at first; dc_i is added to it after the server has accepted the update. grad includes weight decay.
    Source: SCAFFOLD (Karimireddy et al., ICML 2020), docs/methods/training.md#scaffold
    """

    name: ClassVar[str] = "scaffold"
    needs_extra: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    state_adds: ClassVar[bool] = True

    @override
    def gradient_hook(self, model: FlatModel, task: LocalTask, state: Mapping[str, Tensor]) -> GradientHook:
        server_d = _server_control(model, task)
        shift_d = server_d - state[CONTROL].to(server_d.device) if CONTROL in state else server_d
        return lambda gradient_d, _: gradient_d.add_(shift_d)

    @override
    def compute(
        self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask, state: Mapping[str, Tensor]
    ) -> LocalUpdate:
        update = super().compute(model, inputs_nX, labels_n, task, state)
        change_d = update.vector_d.div(update.steps * update.learning_rate).sub_(_server_control(model, task))
        return replace(update, extra_d=change_d, state={CONTROL: change_d})


def _server_control(model: FlatModel, task: LocalTask) -> Tensor:
    assert task.extra_d is not None, "scaffold trains with the control variate that its policy sends along"
    return task.extra_d.to(model.parameters_d.device)
