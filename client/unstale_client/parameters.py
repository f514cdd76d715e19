"""The exchanged tensors of a model as named NumPy arrays, and the checks of arrays that a user gives."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from unstale_client.built_vectors import built
from unstale_client.errors import UserError
from unstale_client.vectors import FLOAT, is_finite
from unstale_proto.encodings import Vector
from unstale_proto.messages import TensorSpec

Array = np.ndarray[Any, np.dtype[np.float32]]

NAMES_SHOWN = 3
BLOCK = 1024**2  # numbers that are changed and checked at a time: 4 MiB fit in a processor's cache

Change = Callable[[Vector, int], object]
"""Changes a block of a vector in place, given the position of its first number."""


def _unchanged(_block: Vector, _position: int) -> None:
    pass


class Tensors:
    """Names, shapes and positions of tensors that follow each other in a vector.

    Attributes:
        numbers: Of all tensors.
    """

    def __init__(self, specs: Sequence[TensorSpec], source: str) -> None:
        """source: where a user sees these tensors, for error messages."""
        self._source = source
        self._parts: dict[str, tuple[slice, tuple[int, ...]]] = {}
        self.numbers = 0
        for spec in specs:
            end = self.numbers + prod(spec.shape)
            self._parts[spec.name] = slice(self.numbers, end), spec.shape
            self.numbers = end

    def views(self, vector: Vector) -> Mapping[str, Array]:
        """The tensors in a vector, which becomes read-only: it is also needed to compute the update."""
        vector.flags.writeable = False
        return MappingProxyType({name: vector[part].reshape(shape) for name, (part, shape) in self._parts.items()})

    def vector(
        self, arrays: Mapping[str, Any], argument: str, folder: Path | None = None, change: Change = _unchanged
    ) -> Vector:
        """A new vector of these arrays, read-only.

        Args:
            arrays: By name; each must have the shape of the tensor, dtype float32, and finite numbers.
            argument: Name of the argument, for error messages.
            folder: Where a large vector lies in a file (`built_vectors.built`); None for memory.
            change: Changes the numbers from a position on, in place.

        Raises:
            UserError: The arrays do not fit, or a changed number is not finite.
        """
        self._check_names(arrays, argument)
        checked = {
            name: _checked(arrays[name], shape, f"{argument}[{name!r}]") for name, (_, shape) in self._parts.items()
        }
        vector = built(lambda: self._blocks(checked, argument, change), self.numbers, folder)
        vector.flags.writeable = False  # a file would not change with it
        return vector

    def _blocks(self, arrays: Mapping[str, Array], argument: str, change: Change) -> Iterator[Vector]:
        scratch: Vector = np.empty(min(BLOCK, self.numbers), FLOAT)
        for name, (part, _) in self._parts.items():
            numbers = arrays[name].ravel()
            for start in range(0, len(numbers), BLOCK):
                block = scratch[: min(BLOCK, len(numbers) - start)]
                block[:] = numbers[start : start + BLOCK]
                with np.errstate(all="ignore"):  # checked here
                    change(block, part.start + start)
                if not is_finite(block):
                    raise UserError(
                        f"{argument}[{name!r}] has a number that is NaN, infinite or too large, expected finite "
                        "float32 numbers; call task.decline to skip this task"
                    )
                yield block

    def _check_names(self, arrays: Mapping[str, Any], argument: str) -> None:
        if not isinstance(arrays, Mapping):
            raise UserError(f"{argument} is a {type(arrays).__name__}, expected a mapping of names to arrays")
        missing = [name for name in self._parts if name not in arrays]
        extra = [name for name in arrays if name not in self._parts]
        if missing or extra:
            has = [f"lacks {_listed(missing)}"] * bool(missing) + [f"has {_listed(extra)} too much"] * bool(extra)
            raise UserError(
                f"{argument} {' and '.join(has)}, expected the {len(self._parts)} names of {self._source}: "
                f"{_listed(list(self._parts))}"
            )


def _checked(array: Any, shape: tuple[int, ...], where: str) -> Array:
    try:
        made: Array = np.asarray(array)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{where} is a {type(array).__name__} that NumPy cannot read ({error}), expected a float32 array"
        ) from None
    if made.shape != shape:
        raise UserError(f"{where} has the shape {made.shape}, expected {shape}")
    if made.dtype != FLOAT:
        raise UserError(f"{where} is {made.dtype}, expected float32; convert it with .astype('float32')")
    return made


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    left = len(names) - NAMES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown
