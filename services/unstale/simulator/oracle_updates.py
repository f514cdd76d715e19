"""Updates of clients from the current model, which only a simulation can compute.

Legend: d parameters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unstale.compensators import StaleRound, StaleUpdate
from unstale.errors import UserError
from unstale.learner.versions import Version
from unstale.simulator.backends.backend import Backend, Job
from unstale.training.workload import NotTrained


class OracleUpdates:
    """Computes true unstale updates: the same task, its draws included, from another model."""

    def __init__(self, backend: Backend, clients: int, settings: Mapping[str, Any]) -> None:
        """settings: that the server sends to clients."""
        self._backend = backend
        self._clients = clients
        self._settings = settings

    def of(self, update: StaleUpdate, stale: StaleRound) -> Tensor:
        """The pseudo-gradient [d] of the same task from the model of the round."""
        number = (update.task_id - 1) // self._clients
        job = Job(
            client_id=update.client_id,
            number=number,
            base=Version(model_d=stale.model_d, buffers_b=stale.buffers_b),
            learning_rate=update.local_rate,
            evaluate=False,
            version=stale.version,
            settings=self._settings,
        )
        with torch.enable_grad():  # rounds are applied without gradients
            (computed,) = self._backend.compute([job])
        self._backend.drop(update.client_id, number)
        if isinstance(computed, NotTrained):
            raise UserError(
                f"client {update.client_id} has no fresh update of task {update.task_id} ({computed}), expected one of "
                "every client; choose another compensator.name"
            )
        local = computed.local
        vector_d = local.vector_d.to(stale.model_d.device)
        return vector_d / update.local_rate if local.kind == "delta" else vector_d
