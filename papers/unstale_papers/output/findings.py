"""Claims with their verdicts, orders with their agreement, and missing items. Pure."""

from statistics import fmean

from unstale.report.content import Column, Section, Table, count
from unstale_papers.comparison import ORDERS, Comparison, Order, Ranking
from unstale_papers.output.report_context import ReportContext
from unstale_papers.preset import Labels
from unstale_papers.verdicts import RULE, Answer, verdicts

ANSWERS: tuple[Answer, ...] = ("holds", "does not hold", "cannot be told")
_CLAIMS = (
    Column(name="claim", head="claim"),
    Column(name="verdict", head="here"),
    Column(name="why", head="why"),
    Column(name="in_print", head="the printed numbers"),
    Column(name="measure", head="measure"),
    Column(name="seeds", head="seeds", form="d"),
)
_ORDERS = (
    Column(name="where", head="where"),
    Column(name="measure", head="measure"),
    Column(name="published", head="in print, best first"),
    Column(name="measured", head="measured, best first"),
    Column(name="seeds", head="seeds", form="d"),
    Column(name="tau", head="Kendall's tau", form=".2f"),
    Column(name="methods", head="methods", form="d"),
    Column(name="p", head="p", form=".2g"),
)


def claims(context: ReportContext) -> Section:
    """The paper's claims on the table, and their verdicts."""
    preset, reached = context.preset, verdicts(context.comparison)
    if not reached:
        return Section(
            name="claims", title="Claims", sentences=["Nothing that the paper says of it compares cells of this table."]
        )
    return Section(
        name="claims",
        title="Claims",
        sentences=[in_short(context.comparison)],
        tables=[
            Table(
                name=f"{preset.name}-claims",
                caption=f"What the paper says, and what was found. {context.size}".strip(),
                columns=_CLAIMS,
                rows=[
                    (
                        *(one.claim.text, one.answer, one.why),
                        one.in_print.removeprefix("In print: ") or None,
                        *(one.claim.measure, len(one.seeds)),
                    )
                    for one in reached
                ],
            )
        ],
    )


def in_short(comparison: Comparison) -> str:
    """`Of 6 claims 3 hold, 1 does not hold, and 2 cannot be told.`"""
    reached = verdicts(comparison)
    hold, not_hold, untold = (sum(verdict.answer == answer for verdict in reached) for answer in ANSWERS)
    summary = f"{hold} {'holds' if hold == 1 else 'hold'}, {not_hold} {'does' if not_hold == 1 else 'do'} not hold"
    return f"Of {count(len(reached), 'claim')} {summary}, and {untold} cannot be told."


def orders(context: ReportContext) -> Section:
    """Printed and measured orders of methods. The page has those of printed measures, if any."""
    preset, rankings = context.preset, context.comparison.rankings
    both = [one for one in rankings if _is_order(one.published)]
    shown = both or list(rankings)
    title = f"Orders by {preset.method}"
    if not rankings:
        return Section(name="orders", title=title, sentences=["There is nothing to rank yet."])
    rest = [one for one in rankings if one not in both] if both else []
    return Section(
        name="orders",
        title=title,
        sentences=[agreement(context.comparison)],
        tables=[
            Table(
                name=f"{preset.name}-orders",
                caption=f"Who is best, in print and here. {context.size}".strip(),
                columns=_ORDERS,
                rows=[_row(one) for one in (*shown, *rest)],
                rows_shown=len(shown),
            )
        ],
    )


def agreement(comparison: Comparison) -> str:
    """Agreement over all orders."""
    found = taus(comparison)
    if not found:
        return "No two orders can be compared: fewer than three methods have a number both in print and here."
    if len(found) == 1:
        return f"Kendall's tau is {found[0]:.2f}."
    return f"Kendall's tau is {fmean(found):.2f} on average over {len(found)} orders, {min(found):.2f} at least."


def taus(comparison: Comparison) -> list[float]:
    """Tau of every order that is both printed and measured."""
    return [one.agreement.tau for one in comparison.rankings if one.agreement is not None]


def _row(one: Ranking) -> tuple[str | float | int | None, ...]:
    agreed = one.agreement
    return (
        label_text(one.labels) or "all",
        one.measure.name,
        _order(one.published),
        _order(one.measured),
        len(one.seeds),
        *((agreed.tau, agreed.n, agreed.p) if agreed is not None else (None,) * 3),
    )


def label_text(labels: Labels) -> str:
    """`data CIFAR-10, beta 0.3`"""
    return ", ".join(f"{axis} {label}" for axis, label in labels.items())


def _order(order: Order) -> str | None:
    return ", ".join(" = ".join(alike) for alike in order) if _is_order(order) else None


def _is_order(order: Order) -> bool:
    """Whether there are at least two methods."""
    return sum(map(len, order)) > 1


def missing(context: ReportContext) -> Section | None:
    """Published items that are not computed here."""
    if not context.preset.missing:
        return None
    return Section(name="missing", title="What is missing", sentences=list(context.preset.missing))


def rules() -> Section:
    """The rules of verdicts and orders."""
    return Section(
        name="rules",
        title="How verdicts and orders are reached",
        sentences=[text.replace("\n", " ") for text in (RULE, ORDERS)],
    )
