"""Measurements of a cell, by name. Each imports torch, so it is imported on use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale_papers.record import Record

Measurement = Callable[..., Record]
"""measure(settings, options, *, on_progress) -> Record. on_progress: receives the completed share, from 0 to 1, at any
rate. Raises UserError for a user's mistake, such as missing data."""

MEASUREMENTS = {
    "run": "unstale_papers.runners.run",
    "inversion cost": "unstale_papers.runners.inversion_cost",
    "staleness errors": "unstale_papers.runners.staleness_errors",
    "loss surface": "unstale_papers.runners.loss_surface",
    "nearest": "unstale_papers.runners.nearest",
    "warm start": "unstale_papers.runners.warm_start",
    "Shapley": "unstale_papers.runners.shapley",
    "fixed point": "unstale_papers.runners.fixed_point",
    "scaling": "unstale_papers.runners.scaling",
    "mean staleness": "unstale_papers.runners.mean_staleness",
    "linear rate": "unstale_papers.runners.linear_rate",
}
"""Modules, each with a function `measure`."""

WITHOUT_DATA = frozenset({"fixed point", "scaling", "mean staleness", "linear rate"})
"""Measurements on problems with a known optimum: they ignore the settings of data, model and partition."""


def measure(
    name: str, settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]
) -> Record:
    """Run the measurement called `name`. Raises UserError for an unknown name."""
    if name not in MEASUREMENTS:
        raise unknown_name("measurement", name, MEASUREMENTS)
    found: Measurement = import_module(MEASUREMENTS[name]).measure
    return found(settings, options, on_progress=on_progress)
