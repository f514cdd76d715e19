"""Models that tests name as `support.factories:...`, with features that the built-in small models lack."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset


def with_buffers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A BatchNorm, whose running averages are float buffers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)
    )


def with_frozen(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A first layer that is not trained."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 16), nn.ReLU(), nn.Linear(16, classes))
    module[1].requires_grad_(False)
    return module


def with_dropout(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A dropout, which draws random numbers while it trains."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(math.prod(input_shape), classes))


def with_noise(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A layer that draws noise that no layer of PyTorch draws."""
    return nn.Sequential(nn.Flatten(), _Noisy(), nn.Linear(math.prod(input_shape), classes))


class _Noisy(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.randn_like(inputs) if self.training else inputs


def with_one_dropout_twice(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A dropout of the inputs that also drops hidden numbers."""
    width, drop = math.prod(input_shape), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), drop, nn.Linear(width, 8), drop, nn.Linear(8, classes))


class _Wide(nn.Module):
    """Learns with its last layer only; the others only add size."""

    def __init__(self, inputs: int, classes: int, ballast: int) -> None:
        super().__init__()
        self.ballast = nn.Parameter(torch.zeros(ballast))
        self.last = nn.Linear(inputs, classes)

    def forward(self, inputs_BCHW: torch.Tensor) -> torch.Tensor:
        return self.last(inputs_BCHW.flatten(1)) + 0 * self.ballast[0]


def wide(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A little over 8 MiB of parameters: too much for one message."""
    return _Wide(math.prod(input_shape), classes, 2 * 1024 * 1024)


def line(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A linear regression."""
    return nn.Linear(math.prod(input_shape), classes)


def planes() -> tuple[TensorDataset, TensorDataset]:
    """Two numbers of each of 60 and 20 examples: y = (2 x0 - x1, x1 + 1)."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 2, generator=drawn)
    targets = torch.stack([2 * inputs[:, 0] - inputs[:, 1], inputs[:, 1] + 1], dim=1)
    return TensorDataset(inputs[:60], targets[:60]), TensorDataset(inputs[60:], targets[60:])


_TEXT = "she sells sea shells by the sea shore; " * 8
_LETTERS = sorted(set(_TEXT))
_CONTEXT = 6


class Letters(Dataset[tuple[dict[str, torch.Tensor], torch.Tensor]]):
    """Pieces of a text, and the letters that follow: read when they are needed. The last target is padding."""

    def __init__(self, first: int, last: int) -> None:
        self._tokens = torch.tensor([_LETTERS.index(letter) for letter in _TEXT[first:last]])

    def __len__(self) -> int:
        return len(self._tokens) - _CONTEXT

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        piece, following = (self._tokens[start : start + _CONTEXT].clone() for start in (index, index + 1))
        following[-1] = -1
        return {"tokens": piece}, following


def letters() -> tuple[Letters, Letters]:
    return Letters(0, 200), Letters(200, len(_TEXT))


class _Bigrams(nn.Module):
    """The letters that follow a letter."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Embedding(len(_LETTERS), len(_LETTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits(tokens)


def bigrams() -> nn.Module:
    return _Bigrams()


def digit(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """One number for an image."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 1))


def own_table(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """The rows (x0, x1, y) of one file: every third one is a test example."""
    return _split(np.load(path))


def all_tables(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """The files of a folder, in the order of their names; each one is a group."""
    files = sorted(path.glob("*.npy"))
    parts = [_split(np.load(file)) for file in files]
    together = []
    for side in zip(*parts, strict=True):
        dataset = TensorDataset(*(torch.cat(tensors) for tensors in zip(*(one.tensors for one in side), strict=True)))
        dataset.groups = np.repeat(np.arange(len(side)), list(map(len, side)))
        together.append(dataset)
    return together[0], together[1]


def _split(rows: np.ndarray) -> tuple[TensorDataset, TensorDataset]:
    is_test = np.arange(len(rows)) % 3 == 2
    train, test = (
        TensorDataset(torch.from_numpy(rows[these, :2]), torch.from_numpy(rows[these, 2:]))
        for these in (~is_test, is_test)
    )
    return train, test


def plane() -> nn.Module:
    """A linear regression of two numbers, which needs no data to be made."""
    return nn.Linear(2, 1)


class _Stream(IterableDataset[tuple[torch.Tensor, ...]]):
    """Examples that can only be read one after the other."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for index in range(len(self._dataset)):
            yield self._dataset[index]


def stream() -> tuple[IterableDataset[tuple[torch.Tensor, ...]], IterableDataset[tuple[torch.Tensor, ...]]]:
    train, test = planes()
    return _Stream(train), _Stream(test)


def untested() -> TensorDataset:
    """Training examples alone."""
    return planes()[0]


def plane_rows() -> tuple[TensorDataset, TensorDataset]:
    """The rows of `planes`, with the first target alone."""
    train, test = (TensorDataset(part.tensors[0], part.tensors[1][:, :1]) for part in planes())
    return train, test
