"""Means over runs with confidence intervals, and mean curves. Pure functions.

Legend: n runs; x points of a curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CONFIDENCE = 0.95
Band = Literal["interval", "std"]
"""The band around a mean: its 95 % confidence interval (Student's t), or one standard deviation of the runs (n - 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of n numbers: `std` with n - 1, `low` to `high` the 95 % confidence interval of the mean.

    The mean is NaN for n = 0, the others for n < 2.
    """

    n: int
    mean: float
    std: float = nan
    low: float = nan
    high: float = nan


def spread(numbers: ArrayLike) -> Spread:
    """Return the statistics of numbers; all are NaN if one of the numbers is."""
    values = np.asarray(numbers, np.float64)
    n = len(values)
    mean = float(values.mean()) if n else nan
    if n < 2:
        return Spread(n=n, mean=mean)
    with np.errstate(invalid="ignore"):  # of infinite losses; the result is NaN
        std = float(values.std(ddof=1))
    half = _quantile(n) * std / sqrt(n)
    return Spread(n=n, mean=mean, std=std, low=mean - half, high=mean + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The mean of n curves, with a band that is NaN for a single one."""

    n: int
    at_x: Floats  # versions, or seconds
    mean_x: Floats
    low_x: Floats
    high_x: Floats
    left_out: int  # points of the runs at versions that not all runs have, or after the end of the first one to end


def single(at_x: Floats | Integers, values_x: Floats) -> Curve:
    """Return a curve of one run."""
    return _curve(np.asarray(at_x, np.float64), values_x[np.newaxis], 0)


def over_versions(series: Sequence[tuple[Integers | Floats, Floats]], *, band: Band = "interval") -> Curve:
    """Return the mean at the versions that all runs have, without interpolation.

    series: increasing versions and values of each run.
    """
    if not series:
        return _curve(np.zeros(0), np.zeros((0, 0)), 0)
    common_x: NDArray[Any] = reduce(np.intersect1d, (versions for versions, _ in series))
    values_nx = np.stack([values[np.isin(versions, common_x)] for versions, values in series])
    left_out = sum(len(versions) for versions, _ in series) - values_nx.size
    return _curve(common_x.astype(np.float64), values_nx, left_out, band)


def over_time(series: Sequence[tuple[Floats, Floats]]) -> Curve:
    """Return the mean of the runs' latest values, from the time when all have one until the first run ends.

    series: increasing seconds and values of each run.
    """
    if not series or any(len(times) == 0 for times, _ in series):
        return _curve(np.zeros(0), np.zeros((len(series), 0)), sum(len(times) for times, _ in series))
    first_s, last_s = max(times[0] for times, _ in series), min(times[-1] for times, _ in series)
    all_times = np.concatenate([times for times, _ in series])
    at_x = np.unique(all_times[(all_times >= first_s) & (all_times <= last_s)])
    values_nx = np.stack([values[np.searchsorted(times, at_x, side="right") - 1] for times, values in series])
    return _curve(at_x, values_nx, int((all_times > last_s).sum()))


def p95(values: Sequence[float] | Floats) -> float:
    """Return the least value that 95 % of the values do not exceed; NaN for no values."""
    return float(np.quantile(values, 0.95, method="inverted_cdf")) if len(values) else nan


def jain(values: Sequence[float] | Floats) -> float:
    """Return the fairness of N shares >= 0, (sum x)^2 / (N sum x^2): from 1 / N to 1 if equal; NaN for a sum of 0.

    Source: Fairness index (Jain, Chiu and Hawe, 1984), docs/methods/measures.md#fairness-index
    """
    squares = float(np.square(values).sum())
    return float(np.sum(values)) ** 2 / (len(values) * squares) if squares > 0 else nan


def _curve(at_x: Floats, values_nx: Floats, left_out: int, band: Band = "interval") -> Curve:
    n = len(values_nx)
    mean_x = values_nx.mean(axis=0) if n else np.zeros(0)
    half_x = np.full(len(at_x), nan)
    with np.errstate(invalid="ignore"):
        if n > 1:
            half_x = values_nx.std(axis=0, ddof=1) * (1 if band == "std" else _quantile(n) / sqrt(n))
        low_x, high_x = mean_x - half_x, mean_x + half_x
    return Curve(n=n, at_x=at_x, mean_x=mean_x, low_x=low_x, high_x=high_x, left_out=left_out)


def _quantile(n: int) -> float:
    """Return t so that 95 % of Student's distribution with n - 1 degrees of freedom are from -t to t."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
