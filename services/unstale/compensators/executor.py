"""How inversions are computed on other machines, for whoever wants them: plain tensors go out and come back."""

from collections.abc import Collection, Mapping
from typing import Protocol

from torch import Tensor

Tensors = dict[str, Tensor]
"""By name, on the host."""


class Executor(Protocol):
    """Other machines that compute. Used by one thread, but for `stop`. None of its methods raises when machines are
    lost."""

    def submit(self, group: Tensors) -> int:
        """Begin with a group of inversions, without waiting for anything; the number that it goes by from now on."""

    def wait(self, numbers: Collection[int], longest_s: float | None) -> Mapping[int, Tensors | str]:
        """Wait until all these have ended, or for so long; None for as long as it takes. What has ended, each told
        once: what was computed, or why it was not."""

    def cancel(self, number: int) -> None:
        """Nobody waits for this one any more."""

    def stop(self) -> None:
        """All that is there, or is sent there from now on, is lost, and whoever waits is told so. Any thread."""
