"""Where clients' work is done: data, shares and one model instance for all clients of a process."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unstale import flat
from unstale.config import build
from unstale.config.settings import Settings
from unstale.flat import FlatModel
from unstale.training.datasets import Dataset
from unstale.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext:
    """trainer: trains any client of the run. model: its workspace. device: where both compute."""

    dataset: Dataset
    model: FlatModel
    trainer: Trainer
    device: torch.device

    def received(self, frames: Iterable[memoryview], *, extra: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The vectors in the payload of a task, on this device: model [d], buffers [b] or None, extra [d] or None.

        frames: float32. Their sizes must add up, as whoever receives has checked.
        """
        d, b = self.model.dimension, self.model.buffers_b.numel()
        payload_D = flat.from_bytes(frames, d + b + (d if extra else 0), self.device)
        return payload_D[:d], payload_D[d : d + b] if b else None, payload_D[d + b :] if extra else None


def training_context(
    settings: Settings, *, code: Collection[str] | None = None, dataset: Dataset | None = None
) -> TrainingContext:
    """Load the data set, share it out and build the model. Raises UserError for what cannot be had or made.

    code: names `package.module:factory` that may be imported, because this machine itself named them; None for any.
    dataset: that of the settings, loaded before; None to load it here.
    """
    device = build.set_up_device(settings)
    if dataset is None:
        dataset = build.dataset(settings, code=code)
    model = build.model(settings, dataset, device, allow_factory=code is None or settings.model.name in code)
    client_indices = build.client_partitions(settings, dataset)
    trainer = Trainer(
        dataset,
        client_indices,
        model,
        build.training(settings),
        settings.seed,
        test_partitions=build.client_test_partitions(settings, dataset, client_indices),
        changes=build.changes(settings, dataset, client_indices),
        attack=build.attack(settings),
    )
    return TrainingContext(dataset=dataset, model=model, trainer=trainer, device=device)
