"""The exchanged tensors of a model as named NumPy arrays, and the checks of arrays that a user gives."""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from unstale_client.errors import UserError
from unstale_client.vectors import FLOAT, is_finite
from unstale_proto.encodings import Vector
from unstale_proto.messages import TensorSpec

Array = np.ndarray[Any, np.dtype[np.float32]]

NAMES_SHOWN = 3


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

    def vector(self, arrays: Mapping[str, Any], argument: str) -> Vector:
        """A new vector with these arrays.

        Args:
            arrays: By name; each must have the shape of the tensor, dtype float32, and finite numbers.
            argument: Name of the argument, for error messages.

        Raises:
            UserError: The arrays do not fit.
        """
        self._check_names(arrays, argument)
        vector: Vector = np.empty(self.numbers, FLOAT)
        for name, (part, shape) in self._parts.items():
            vector[part] = _checked(arrays[name], shape, f"{argument}[{name!r}]").ravel()
        return vector

    def check_finite(self, vector: Vector, argument: str) -> None:
        """Raise UserError for a vector with a number that is not finite, and name its tensor."""
        for name, (part, _) in self._parts.items():
            if not is_finite(vector[part]):
                raise UserError(
                    f"{argument}[{name!r}] has a number that is NaN, infinite or too large, expected finite float32 "
                    "numbers; call task.decline to skip this task"
                )

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
