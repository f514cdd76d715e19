"""Stale updates on real data and their true counterparts, the reference of estimates.

A hundred clients with unlike shares (`dirichlet-client`, alpha 0.1) train a model in rounds of ten, in turn; those with
the most examples of one class compute updates from older models.

Legend: d parameters.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unstale.compensators import LocalSteps, Network, StaleRound, StaleUpdate
from unstale.config.compensation import local_steps
from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.settings.learning import DataSettings, ModelSettings, PartitionSettings, TrainingSettings

CLIENTS, AT_A_TIME, EPOCHS, RATE = 100, 10, 5, 0.01
STALE = 10  # clients with the most examples of the affected class
FULL_BATCH = 10**6

MODELS = {"mnist": ("lenet_gi", 5), "cifar10": ("lenet_cifar", 2)}
"""By data set: the network, and the affected class (docs/methods/partitions.md#affected-clients)."""


@dataclass(frozen=True, kw_only=True)
class StaleUpdates:
    """A run of one seed. data: `mnist` or `cifar10`, in a file of four arrays. examples: that a client holds at
    most.
    """

    data: str
    file: Path
    seed: int
    examples: int

    @cached_property
    def settings(self) -> Settings:
        return Settings(
            seed=self.seed,
            clients=CLIENTS,
            device="cpu",
            data=DataSettings(name="npz", path=str(self.file)),
            model=ModelSettings(name=MODELS[self.data][0]),
            partition=PartitionSettings(name="dirichlet-client", alpha=0.1, budget=self.examples),
            training=TrainingSettings(epochs=EPOCHS, batch_size=FULL_BATCH, learning_rate=RATE),
        )

    @cached_property
    def context(self) -> TrainingContext:
        return training_context(self.settings)

    @cached_property
    def network(self) -> Network:
        dataset = self.context.dataset
        return Network(self.context.model.module, dataset.input_shape, dataset.classes)

    @property
    def steps(self) -> LocalSteps:
        return local_steps(self.settings)

    @cached_property
    def holders(self) -> list[int]:
        """Clients with the most examples of the affected class, the most first."""
        label = MODELS[self.data][1]
        held = [int((self.context.trainer.examples(client)[1] == label).sum()) for client in range(CLIENTS)]
        return [int(client) for client in np.argsort(held, kind="stable")[::-1][:STALE]]

    def models(self, rounds: int) -> list[Tensor]:
        """Every version of a run without staleness, [d] each."""
        versions = [self.context.model.parameters_d.clone()]
        for version in range(rounds):
            first = version * AT_A_TIME % CLIENTS
            updates = [self.update(client, version, versions[-1]) for client in range(first, first + AT_A_TIME)]
            versions.append(versions[-1] - torch.stack(updates).mean(0))
        return versions

    def update(self, client_id: int, number: int, model_d: Tensor) -> Tensor:
        """u = w - w_end of a client, [d], in parameter units."""
        return self.context.trainer.train(client_id, number, model_d, RATE).vector_d

    def stale_round(self, versions: list[Tensor], now: int, staleness: int, clients: list[int]) -> StaleRound:
        """Updates of these clients from a model older than the current one."""
        base = now - staleness
        return StaleRound(
            version=now,
            model_d=versions[now],
            buffers_b=torch.empty(0),
            updates=[
                StaleUpdate(
                    client_id=client,
                    task_id=client + 1,
                    base_version=base,
                    staleness=staleness,
                    num_examples=len(self.context.trainer.examples(client)[1]),
                    local_rate=RATE,
                    vector_d=self.update(client, base, versions[base]) / RATE,
                    kept_base_d=versions[base],
                )
                for client in clients
            ],
        )

    def true_updates(self, stale: StaleRound) -> list[Tensor]:
        """Their pseudo-gradients from the current model, [d] each."""
        return [self.update(one.client_id, stale.version, stale.model_d) / RATE for one in stale.updates]
