"""Bytes of a fuzzer, read as choices: equal bytes give equal choices, and no bytes the simplest."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Consumes bytes from the front. After the last one every number is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def are_over(self) -> bool:
        return self._at >= len(self._data)

    def taken(self, count: int) -> bytes:
        """At most so many of the remaining bytes."""
        start, self._at = self._at, min(self._at + count, len(self._data))
        return self._data[start : self._at]

    def rest(self) -> bytes:
        return self.taken(len(self._data))

    def number(self, below: int) -> int:
        """From 0 on."""
        width = max(1, ((below - 1).bit_length() + 7) // 8)
        return int.from_bytes(self.taken(width), "little") % below

    def of(self, options: Sequence[T]) -> T:
        return options[self.number(len(options))]
