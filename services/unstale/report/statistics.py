"""Means over runs with what can be said of their uncertainty, and curves of several runs as one. Pure.

Legend: n runs; x points of a curve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CONFIDENCE = 0.95
Band = Literal["interval", "std"]
"""Around a mean: its 95 % confidence interval by Student's t, or one standard deviation of the runs, with n - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of n numbers. std: with n - 1. low, high: ends of the 95 % confidence interval of the mean, by Student's t. What
    takes two numbers is NaN with one, and the mean with none."""

    n: int
    mean: float
    std: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """NaN among the values makes all of it NaN: nothing is left out silently."""
    n = len(values)
    if n == 0:
        return Spread(n=0, mean=nan, std=nan, low=nan, high=nan)
    mean = float(np.mean(values))
    if n == 1:
        return Spread(n=1, mean=mean, std=nan, low=nan, high=nan)
    with np.errstate(invalid="ignore"):  # an infinite loss has no spread
        std = float(np.std(values, ddof=1))
    half = _quantile(n) * std / sqrt(n)
    return Spread(n=n, mean=mean, std=std, low=mean - half, high=mean + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The mean of n runs. at_x: versions or seconds. low_x, high_x: of the band, NaN with one run. left_out: points of
    single runs that are not in it, because not all runs have them."""

    n: int
    at_x: Floats
    mean_x: Floats
    low_x: Floats
    high_x: Floats
    left_out: int


def over_versions(series: Sequence[tuple[Integers | Floats, Floats]], *, band: Band = "interval") -> Curve:
    """Of the versions that every run has; nothing is interpolated. series: versions, increasing, and values of each
    run."""
    if not series:
        return _curve(np.zeros(0), np.zeros((0, 0)), 0)
    common_x: NDArray[Any] = reduce(np.intersect1d, (versions for versions, _ in series))
    values_nx = np.stack([values[np.isin(versions, common_x)] for versions, values in series])
    left_out = sum(len(versions) for versions, _ in series) - values_nx.size
    return _curve(common_x.astype(np.float64), values_nx, left_out, band)


def over_time(series: Sequence[tuple[Floats, Floats]]) -> Curve:
    """At every time at which a run was measured, what was measured last of each run by then; nothing is interpolated.

    From when every run has been measured, until the first of them ends. series: seconds, increasing, and values.
    """
    if not series or any(len(times) == 0 for times, _ in series):
        return _curve(np.zeros(0), np.zeros((len(series), 0)), sum(len(times) for times, _ in series))
    first_s, last_s = max(times[0] for times, _ in series), min(times[-1] for times, _ in series)
    every = np.concatenate([times for times, _ in series])
    at_x = np.unique(every[(every >= first_s) & (every <= last_s)])
    values_nx = np.stack([values[np.searchsorted(times, at_x, side="right") - 1] for times, values in series])
    return _curve(at_x, values_nx, int((every > last_s).sum()))


def jain(values: Sequence[float] | Floats) -> float:
    """How evenly a sum is shared out among N: (sum x)^2 / (N sum x^2), 1 when all have the same, 1 / N when one has it.

    NaN of nothing.
    Source: Fairness index (Jain, Chiu and Hawe, 1984), docs/methods/measures.md#fairness-index
    """
    of = np.asarray(values, np.float64)
    squares = float((of**2).sum())
    return float(of.sum()) ** 2 / (len(of) * squares) if squares > 0 else nan


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
    """Of Student's t with n - 1 degrees of freedom, such that 95 % lie between it and its negative."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
