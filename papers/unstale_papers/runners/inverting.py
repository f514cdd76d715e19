"""One inversion, iteration by iteration.

Legend: d parameters.
"""

from collections.abc import Callable

import torch

from unstale.compensators import StaleUpdate
from unstale.compensators.gradient_inversion import GradientInversion
from unstale.compensators.inversion.state import Inversion
from unstale.errors import UserError

SHOWN_MAX = 200  # points of a curve over iterations that are kept


def inverted(
    inverting: GradientInversion, update: StaleUpdate, *, on_iteration: Callable[[float], None]
) -> tuple[Inversion, list[float]]:
    """Invert an update to the end; return D before each iteration and after the last.

    inverting: with the settings and the client's warm start. on_iteration: receives the completed share.
    Raises UserError where the device's memory is too small.
    """
    engine = inverting.inversions.engine
    losses = []
    try:
        one = inverting.inversions.begin(update)
        while not one.is_over:
            engine.iterate([one])
            losses.append(one.disparity)
            on_iteration(one.done / one.iterations)
    except torch.OutOfMemoryError:
        raise UserError(
            "the device's memory is too small to invert one update; make the preset smaller with --scale, or give "
            "--device cpu"
        ) from None
    made_d = engine.local_update(one.now, one.target.base, one.target.steps, one.target.rate)
    losses.append((made_d - update.vector_d * update.local_rate).abs().sum())
    inverting.inversions.close([update])
    return one, torch.stack(losses).tolist()


def curve(values: list[float]) -> list[tuple[int, float]]:
    """Index and value of a sample of the values, including the first and the last."""
    every = max(1, len(values) // SHOWN_MAX)
    return [(number, value) for number, value in enumerate(values) if not number % every or number == len(values) - 1]
