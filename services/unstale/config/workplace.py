"""Where clients' work is done: data, shares and one model instance for all clients of a process."""

from dataclasses import dataclass

import torch

from unstale import flat
from unstale.config import parts
from unstale.config.settings import Settings
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.datasets import Dataset
from unstale.training.partition import split
from unstale.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """trainer: trains any client of the run. model: its workspace. device: where both compute."""

    dataset: Dataset
    model: FlatModel
    trainer: Trainer
    device: torch.device

    @property
    def tensors(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """(name, shape, dtype) of the model's parameters, in vector order."""
        return flat.describe(self.model.module)


def workplace(settings: Settings) -> Workplace:
    """Load the data set, share it out and build the model. Raises UserError for what cannot be had or made.

    The shares are a function of the data set, the partition's settings, the number of clients and the seed alone, so
    that processes agree on them without a word.
    """
    device = parts.set_up_device(settings)
    dataset = parts.dataset(settings)
    model = parts.model(settings, dataset, device)
    shares = split(
        settings.partition.name,
        dataset.labels_train_N.numpy(),
        settings.clients,
        stream(settings.seed, Stream.PARTITION),
        alpha=settings.partition.alpha,
        min_examples=settings.partition.min_examples,
    )
    trainer = Trainer(dataset, shares, model, parts.training(settings), settings.seed)
    return Workplace(dataset=dataset, model=model, trainer=trainer, device=device)
