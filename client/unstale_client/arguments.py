"""Checks of the arguments of a user's calls."""

import math
import operator
import re
from collections.abc import Mapping
from typing import SupportsFloat, SupportsIndex

from unstale_client.errors import UserError
from unstale_proto import limits

_METRIC_NAME = re.compile(rf"[a-z0-9_./-]{{1,{limits.METRIC_NAME_MAX}}}")


def index(value: SupportsIndex, name: str, least: int, most: int) -> int:
    """A whole number within bounds. Raises UserError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise UserError(f"{name} is {value!r}, expected a whole number from {least} to {most}")
    return number


def number(value: SupportsFloat, name: str) -> float:
    """A number, perhaps not finite. Raises UserError."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (OverflowError, TypeError, ValueError):
        pass
    raise UserError(f"{name} is {value!r:.80}, expected a number")


def metrics(given: Mapping[str, SupportsFloat] | None) -> dict[str, float]:
    """Metrics by name that a message can hold. Raises UserError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UserError(f"metrics is a {type(given).__name__}, expected a mapping of names to numbers")
    if len(given) > limits.METRICS_MAX:
        raise UserError(f"metrics has {len(given)} names, expected at most {limits.METRICS_MAX}")
    checked: dict[str, float] = {}
    for name, value in given.items():
        if not (isinstance(name, str) and _METRIC_NAME.fullmatch(name)):
            raise UserError(
                f"metrics has the name {name!r:.80}, expected 1 to {limits.METRIC_NAME_MAX} characters of a-z0-9_./-"
            )
        checked[name] = number(value, f"metrics[{name!r}]")
        if not math.isfinite(checked[name]):
            raise UserError(f"metrics[{name!r}] is {value!r:.80}, expected a finite number; leave it out")
    return checked
