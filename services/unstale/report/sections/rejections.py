"""Rejected updates, by reason."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from unstale.report import drawing
from unstale.report.content import Cell, Column, Picture, Section, Table
from unstale.report.groups import Group, frame, keys
from unstale.report.sections.columns import GROUP, UPDATES

_REJECTIONS = (*(GROUP, Column("reason", "reason"), UPDATES), Column("received_ratio", "of those received", ".2%"))
REASONS_DRAWN = 10


def section(groups: Sequence[Group]) -> Section:
    counts = [Counter(frame([group], "updates").reason.dropna()) for group in groups]
    received = [sum(run.conservation.received for run in group.runs) for group in groups]
    rows: list[tuple[Cell, ...]] = [
        (group.label, reason, times, times / total)
        for group, reasons, total in zip(groups, counts, received, strict=True)
        for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    ]
    sentences = [
        "Run directories do not store duplicates, nor updates for unknown tasks: these numbers do not count them."
    ]
    return Section(
        name="rejections",
        title="Rejections",
        sentences=sentences if rows else ["No update was rejected.", *sentences],
        pictures=[_bars(groups, counts, received)] if rows else [],
        tables=[Table("rejections", "Rejected updates by reason, over all runs of a group", _REJECTIONS, rows)],
    )


def _bars(groups: Sequence[Group], counts: Sequence[Counter[str]], received: Sequence[int]) -> Picture:
    together: Counter[str] = sum(counts, Counter())
    reasons = [reason for reason, _ in together.most_common(REASONS_DRAWN)]
    parts = [
        (group.legend, [100 * times[reason] / max(total, 1) for reason in reasons])
        for group, times, total in zip(groups, counts, received, strict=True)
    ]
    totals = ", ".join(f"{reason} {together[reason]:,}" for reason in reasons)
    return Picture(
        name="rejections",
        title="Rejected updates by reason",
        caption="Share of the received updates that was rejected, over all runs of a group.",
        alternative=f"Bars of rejected updates by reason: {totals} in total.",
        draw=partial(
            drawing.bars_across,
            names=reasons,
            parts=parts,
            axis_label="rejected, % of the updates received",
            stacked=False,
        ),
        keys=keys(groups),
        bars=len(reasons) * len(groups),
    )
