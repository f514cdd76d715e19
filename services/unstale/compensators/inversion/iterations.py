"""Iterations of inversions that are computed together, with their state on the device from one to the next.

Legend: B updates inverted together.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from unstale.compensators.inversion.iteration import Iteration, Targets, factors
from unstale.compensators.inversion.state import Inversion, State
from unstale.graphs import Graphs, Work

AHEAD = 64  # iterations whose factors are copied to the device together
WARM_UP = 3  # iterations before a capture
PACE = 16  # iterations between two waits for the device, which is at most twice as many behind

RateOf = Callable[[Inversion, int], float]
"""(inversion, iterations done before) -> learning rate."""


class EagerIterations:
    """Computes iterations of a group, operation by operation.

    Attributes:
        group: The inversions; empty before `load` and after `release`.
    """

    def __init__(self, iteration: Iteration, rate_of: RateOf) -> None:
        self._iteration = iteration
        self._rate_of = rate_of
        self.group: list[Inversion] = []

    def fits(self, group: Sequence[Inversion]) -> bool:  # noqa: ARG002  (a captured graph fits some only)
        """Whether `load` takes this group."""
        return True

    def load(self, group: Sequence[Inversion]) -> None:
        """Take over the state of these inversions, which are of one kind."""
        state = State.stacked([one.state for one in group])
        targets = Targets.stacked([one.target for one in group], state.inputs.device)
        self._put(state, targets)
        self.group = list(group)
        self._expected: list[tuple[int, int]] = []
        for index, one in enumerate(group):
            one.read_from(self, partial(self._row, index))

    def holds(self, group: Sequence[Inversion]) -> bool:
        """Whether it has the state of exactly these inversions."""
        return self.group == list(group) and all(one.source is self for one in group)

    def release(self) -> None:
        """Give the state back to the inversions."""
        for one in self.group:
            if one.source is self:
                one.state = one.state
        self.group = []
        self._drop()

    def advance(self) -> None:
        """Compute one iteration of each."""
        planned = [(one.done, one.iterations) for one in self.group]
        if planned != self._expected or self._position == self._count:
            self._put_factors(self._next_factors())
        self._compute()
        self._position += 1
        self._expected = [(done + 1, iterations) for done, iterations in planned]
        for one in self.group:
            one.done += 1

    def _next_factors(self) -> Tensor:
        """The factors of the next iterations, [n, 3, B], on the host."""
        self._position = 0
        self._count = max(1, min(AHEAD, *(one.iterations - one.done for one in self.group)))
        return torch.tensor([self._factors(later) for later in range(self._count)])

    def _factors(self, later: int) -> list[tuple[float, ...]]:
        """The factors after so many more iterations, [3, B]."""
        each = [factors(self._rate_of(one, one.done + later), one.done + later) for one in self.group]
        return list(zip(*each, strict=True))

    # Subclasses override these.

    def _put(self, state: State, targets: Targets) -> None:
        self._state = state
        self._targets = targets

    def _put_factors(self, factors_n3B: Tensor) -> None:
        self._factors_n3B = factors_n3B.to(self._state.inputs.device)

    def _drop(self) -> None:
        self.__dict__.pop("_state", None)
        self.__dict__.pop("_targets", None)

    def _row(self, index: int) -> State:
        return self._state.row(index)

    def _compute(self) -> None:
        self._state = self._iteration(self._state, self._targets, self._factors_n3B[self._position])


class CapturedIterations(EagerIterations):
    """Computes an iteration of a group as a replay of one graph, over buffers that keep their addresses.

    The first iterations are eager, and all are where no graph can be captured.
    """

    def __init__(self, iteration: Iteration, rate_of: RateOf, graphs: Graphs) -> None:
        super().__init__(iteration, rate_of)
        self._graphs = graphs
        self._replay: Work | None = None
        self._warmed_up = 0
        self._shape: tuple[object, ...] | None = None
        self._wait_for_last: Work | None = None

    @override
    def fits(self, group: Sequence[Inversion]) -> bool:
        return self._shape in (None, _shape(group))

    @override
    def load(self, group: Sequence[Inversion]) -> None:
        self._shape = _shape(group)
        super().load(group)

    @override
    def _put(self, state: State, targets: Targets) -> None:
        if self._warmed_up == 0:
            super()._put(state, targets)
            self._factors_n3B = torch.ones(AHEAD, 3, len(state.inputs), device=state.inputs.device)
            self._at = torch.zeros(1, dtype=torch.int64, device=state.inputs.device)  # the next row of factors
        else:
            _overwrite(self._state, state)
            _overwrite(self._targets.tensors, targets.tensors)

    @override
    def _put_factors(self, factors_n3B: Tensor) -> None:
        self._graphs.upload(self._factors_n3B[: len(factors_n3B)], factors_n3B)
        self._at.zero_()

    @override
    def _drop(self) -> None:
        """The buffers stay, for the next group."""

    @override
    def _row(self, index: int) -> State:
        return State(*(tensor.clone() for tensor in self._state.row(index)))

    @override
    def _compute(self) -> None:
        if self._replay is None and self._warmed_up == WARM_UP:
            self._replay = self._graphs.capture(self._iterate)
        if self._replay is None:
            self._warmed_up += 1
            self._graphs.warm_up(self._iterate)
            return
        self._replay()
        if self._position % PACE == 0:
            self._wait()

    def _iterate(self) -> None:
        """One iteration, written to the buffers."""
        factors_3B = self._factors_n3B.index_select(0, self._at)[0]
        _overwrite(self._state, self._iteration(self._state, self._targets, factors_3B))
        self._at.add_(1)

    def _wait(self) -> None:
        """Wait for the iterations before the last call, so that the budget's seconds are the device's."""
        if self._wait_for_last is not None:
            self._wait_for_last()
        self._wait_for_last = self._graphs.mark()


def _shape(group: Sequence[Inversion]) -> tuple[object, ...]:
    """The shapes and types of a group's buffers."""
    first = group[0]
    return len(group), first.kind, first.target.update[0].dtype


def _overwrite(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)
