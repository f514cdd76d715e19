"""How a cell is measured, by name. Each imports torch, so it is imported when it is used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale_papers.record import Record

Measurement = Callable[..., Record]
"""measure(settings, options, *, on_progress) -> Record. on_progress: told the share that is done, from 0 to 1, as often
as the measurement likes. Raises UserError for what whoever runs it can mend, such as data that is not there."""

MEASUREMENTS = {
    "run": "unstale_papers.runners.run",
    "inversion cost": "unstale_papers.runners.inversion_cost",
    "staleness errors": "unstale_papers.runners.staleness_errors",
    "loss surface": "unstale_papers.runners.loss_surface",
    "nearest": "unstale_papers.runners.nearest",
    "warm start": "unstale_papers.runners.warm_start",
    "Shapley": "unstale_papers.runners.shapley",
}
"""Modules, each with a function `measure`."""


def measure(
    name: str, settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]
) -> Record:
    """What the measurement called `name` finds. Raises UserError for a name that there is not."""
    if name not in MEASUREMENTS:
        raise unknown_name("measurement", name, MEASUREMENTS)
    found: Measurement = import_module(MEASUREMENTS[name]).measure
    return found(settings, options, on_progress=on_progress)
