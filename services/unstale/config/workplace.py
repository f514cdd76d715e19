"""Where clients' work is done: data, shares and one model instance for all clients of a process."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unstale import flat
from unstale.config import parts
from unstale.config.settings import Settings
from unstale.flat import FlatModel
from unstale.training.datasets import Dataset
from unstale.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """trainer: trains any client of the run. model: its workspace. device: where both compute."""

    dataset: Dataset
    model: FlatModel
    trainer: Trainer
    device: torch.device

    def received(
        self, frames: Iterable[memoryview], *, extra: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The vectors in the payload of a task, on this device: model [d], buffers [b] or None, extra [d] or None.

        frames: float32. Their sizes must add up, as whoever receives has checked.
        """
        d, b = self.model.dimension, self.model.buffers_b.numel()
        payload_D = flat.from_bytes(frames, d + b + (d if extra else 0), self.device)
        return payload_D[:d], payload_D[d : d + b] if b else None, payload_D[d + b :] if extra else None


def workplace(
    settings: Settings, *, code: Collection[str] | None = None, dataset: Dataset | None = None
) -> Workplace:
    """Load the data set, share it out and build the model. Raises UserError for what cannot be had or made.

    code: names `package.module:factory` that may be imported, because this machine itself named them; None for any.
    dataset: that of the settings, loaded before; None to load it here.
    """
    device = parts.set_up_device(settings)
    if dataset is None:
        dataset = parts.dataset(settings, code=code)
    model = parts.model(settings, dataset, device, allow_factory=code is None or settings.model.name in code)
    shares = parts.shares(settings, dataset)
    trainer = Trainer(
        dataset,
        shares,
        model,
        parts.training(settings),
        settings.seed,
        test_shares=parts.test_shares(settings, dataset, shares),
        changes=parts.changes(settings, dataset, shares),
        attack=parts.attack(settings),
    )
    return Workplace(dataset=dataset, model=model, trainer=trainer, device=device)
