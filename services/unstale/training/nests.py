"""Nests of tensors: a tensor, or a tuple, list or mapping of nests, as `torch.utils.data.default_collate` makes them.

Legend: b examples of a batch, in the first dimension of each tensor of a nest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Nest = Any
"""A tensor, or a tuple, list or mapping of nests. Other values, such as strings, stay as they are."""


def mapped(function: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """The nest with a function applied to each tensor. Tuples and lists become tuples."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: mapped(function, part) for key, part in nest.items()}
    if isinstance(nest, tuple | list):
        return tuple(mapped(function, part) for part in nest)
    return nest


def tensors(nest: Nest) -> Iterator[Tensor]:
    """The tensors of a nest, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping | tuple | list):
        for part in nest.values() if isinstance(nest, Mapping) else nest:
            yield from tensors(part)


def joined(nests: Sequence[Nest]) -> Nest:
    """Nests of the same form as one, whose tensors are put one after the other."""
    first = nests[0]
    if len(nests) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(nests))
    if isinstance(first, Mapping):
        return {key: joined([nest[key] for nest in nests]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(joined(list(parts)) for parts in zip(*nests, strict=True))
    return first


def split(nest: Nest, size: int) -> Iterator[Nest]:
    """The nest in parts of at most so many examples: views."""
    examples = max((len(tensor) for tensor in tensors(nest)), default=0)
    for start in range(0, examples, size):
        end = min(start + size, examples)
        yield mapped(lambda tensor, start=start, end=end: tensor[start:end], nest)  # type: ignore[misc]


def forward(module: nn.Module, inputs: Nest) -> Nest:
    """Call a module: a mapping is its keyword arguments, a tuple its arguments, and a tensor its only argument."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)
