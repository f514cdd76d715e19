"""Plots of compensation errors. Each function writes a PNG file.

Legend: S stalenesses, R repetitions (clients and seeds), T rounds.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#compensation-errors
"""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from unstale.report import drawing, files

Numbers = NDArray[np.floating]

INCHES = (11.0, 4.6)
AXES = ("L1 error", "cosine error, 1 - cos")
METHODS = ("gradient-inversion", "first-order", "none")
"""Methods with a style of their own; others follow."""

NAMES = {"none": "unchanged stale update", "gradient-inversion": "gradient inversion"}
OF_PAPER = {"gradient-inversion": " (E1)", "none": " (E2)"}


def draw_errors_by_staleness(
    staleness_S: Sequence[int], l1: Mapping[str, Numbers], cosine: Mapping[str, Numbers], title: str, file: Path
) -> None:
    """Draw compensation errors against staleness, as figures 2 and 7 of the paper.

    Args:
        staleness_S: rounds.
        l1: by method, [S, R], NaN for missing ones. The line is the mean, the band one standard deviation.
        cosine: like `l1`.
        title: of the figure.
        file: the PNG file.
    """
    methods = [*METHODS, *(method for method in l1 if method not in METHODS)]
    with files.figure(file, INCHES, title) as figure:
        left, right = figure.subplots(1, 2)
        for axes, errors, axis in zip((left, right), (l1, cosine), AXES, strict=True):
            for method, values_SR in errors.items():
                place = methods.index(method)
                known_S = np.isfinite(values_SR).any(axis=1)
                at_S = np.asarray(staleness_S)[known_S]
                mean_S, std_S = np.nanmean(values_SR[known_S], axis=1), np.nanstd(values_SR[known_S], axis=1)
                colour = drawing.Style(place).colour
                axes.fill_between(at_S, mean_S - std_S, mean_S + std_S, color=colour, alpha=drawing.BAND)
                drawing.plain_line(axes, at_S, mean_S, place, NAMES.get(method, method))
            axes.set_xlabel("staleness, rounds")
            axes.set_ylabel(axis)
            axes.set_ylim(bottom=0)
            axes.set_xticks(staleness_S[:: ceil(len(staleness_S) / 12)])
        left.legend(loc="upper left", title="mean, band: one standard deviation", alignment="left")


def draw_errors_by_round(
    rounds_T: Sequence[int],
    l1: Mapping[str, Numbers],
    cosine: Mapping[str, Numbers],
    title: str,
    file: Path,
    *,
    switched_at: int | None = None,
    gone_at: int | None = None,
) -> None:
    """Draw compensation errors over rounds, as figure 8 of the paper.

    Args:
        rounds_T: rounds.
        l1: by method, [T], NaN for missing ones.
        cosine: like `l1`.
        title: of the figure.
        file: the PNG file.
        switched_at: round from which on estimates fade out.
        gone_at: first round without estimates.
    """
    with files.figure(file, INCHES, title) as figure:
        left, right = figure.subplots(1, 2)
        for axes, errors, axis in zip((left, right), (l1, cosine), AXES, strict=True):
            for method, values_T in errors.items():
                known_T = np.isfinite(values_T)
                label = NAMES.get(method, method) + OF_PAPER.get(method, "")
                at_T = np.asarray(rounds_T)[known_T]
                drawing.plain_line(axes, at_T, values_T[known_T], METHODS.index(method), label)
            axes.set_xlabel("round")
            axes.set_ylabel(axis)
            axes.set_ylim(bottom=0)
            drawing.whole_numbers(axes)
            _mark_switch(axes, switched_at, gone_at)
        left.legend()


def _mark_switch(axes: Axes, switched_at: int | None, gone_at: int | None) -> None:
    if switched_at is None:
        return
    axes.axvline(switched_at, color="black", linewidth=1, linestyle="-.", label=f"switch, round {switched_at}")
    if gone_at is not None and gone_at > switched_at:
        axes.axvspan(switched_at, gone_at, color="0.5", alpha=drawing.BAND, linewidth=0, label="estimates fade out")
