"""Updates that were refused."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, keys
from unstale.report.sections.columns import GROUP

_REJECTIONS = (
    GROUP,
    Column(name="reason", head="reason"),
    Column(name="updates", head="updates", form=","),
    Column(name="received_ratio", head="of those received", form=".2%"),
)
REASONS_DRAWN = 10


def section(groups: Sequence[Group]) -> Section:
    counts = [
        Counter(reason for run in group.runs for reason in run.updates.reasons_U if reason)
        for group in groups
    ]
    received = [sum(run.conservation.received for run in group.runs) for group in groups]
    rows: list[tuple[Cell, ...]] = [
        (group.label, reason, times, times / all_of_them)
        for group, of, all_of_them in zip(groups, counts, received, strict=True)
        for reason, times in sorted(of.items(), key=lambda item: (-item[1], item[0]))
    ]
    sentences = [
        "A duplicate of an update, and one for a task that was never given, leave no trace in a run directory: they "
        "are in none of these numbers."
    ]
    if not rows:
        sentences.insert(0, "No update was refused.")
    table = Table(
        name="rejections",
        caption="Updates that were refused, by reason, over all runs of a group",
        columns=_REJECTIONS,
        rows=rows,
    )
    return Section(
        name="rejections",
        title="Rejections",
        sentences=sentences,
        pictures=[_bars(groups, counts, received)] if rows else [],
        tables=[table],
    )


def _bars(groups: Sequence[Group], counts: Sequence[Counter[str]], received: Sequence[int]) -> Picture:
    together: Counter[str] = sum(counts, Counter())
    reasons = [reason for reason, _ in together.most_common(REASONS_DRAWN)]
    parts = [
        (group.legend, [100 * of[reason] / max(all_of_them, 1) for reason in reasons])
        for group, of, all_of_them in zip(groups, counts, received, strict=True)
    ]
    said = ", ".join(f"{reason} {together[reason]:,}" for reason in reasons)
    return Picture(
        name="rejections",
        title="Refused updates by reason",
        caption="Part of the updates received that was refused, over all runs of a group.",
        alternative=f"Bars of refused updates by reason: {said} in all.",
        draw=partial(_draw, names=reasons, parts=parts),
        keys=keys(groups),
        bars=len(reasons) * len(groups),
    )


def _draw(axes: Axes, names: Sequence[str], parts: Sequence[tuple[str, Sequence[float]]]) -> None:
    drawing.bars_across(axes, names, parts, stacked=False)
    axes.set_xlabel("refused, % of the updates received")
