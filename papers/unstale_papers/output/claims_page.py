"""The claims of all papers on one page: `claims.md`, and `claims.csv` with every size."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path

from unstale.report import files
from unstale.report.content import NONE, Cell, Column, Table, count, listed
from unstale_papers.claims.summary import SizedVerdict, SummaryRow
from unstale_papers.output.markdown import escaped, table_row
from unstale_papers.pairs import claimed
from unstale_papers.preset import Claim
from unstale_papers.statistics import Spread
from unstale_papers.table_metrics import measure
from unstale_papers.verdicts import RULE, DecidingPair, Figures, Printed, Verdict, lead_text

NAME = "claims"
NOT_RUN = "not run"
_ABOUT = "README.md"  # of published results
_ANSWERS = ("holds", "does not hold", "cannot be told", NOT_RUN)
_HEADS = ["claim", "verdict", "ahead in", "ours", "in print", "results"]
_READING = (
    "**Verdict**: by the rule [below](#how-verdicts-are-reached). A claim about several methods or settings holds "
    "only with a lead in every comparison. `Ahead by less`: the paper's method is ahead in every comparison and, "
    "where several seeds decide, on average by more than their spread, but by less than is claimed. Seeds are those "
    "that all comparisons have; one comparison with more can decide that a claim does not hold or cannot be told.",
    "**Ahead in**: comparisons in which the paper's method is ahead, of those with a number on both sides.",
    "**Ours**: mean lead of the paper's method over these comparisons, above 0 or 1.00 times where it is better, "
    "with the 95 % interval over seeds (Student's t), which needs two seeds or more. Where all have one seed and "
    "some more, each counts with the mean over its own. With `at most` or `at least` runs ended before their target. "
    "`Least` is the comparison with the smallest lead, `deciding` the one that decides by more seeds. Where a level "
    "is claimed, it is the measured value, of several the one nearest to the level or farthest beyond it.",
    "**In print**: the same lead of the printed numbers, in the same comparisons, or the claimed lead where none are "
    "printed.",
    "**Results**: page with the runs, and their size; of several sizes the largest, `claims.csv` has all. Some rows "
    "are of the same runs, because tables and figures of a paper share them.",
    "N/K and P/K are clients per update of a round, which determines the staleness. The smaller beta, the more the "
    "clients' data differ.",
)


def write(rows: Sequence[SummaryRow], folder: Path) -> list[Path]:
    """Write both files into the folder of the results, and return them. Raises UserError for disk errors."""
    table = of_programs(rows)
    return [
        files.write(folder / f"{NAME}.md", text(rows, folder).encode()),
        files.write(folder / f"{NAME}.csv", files.as_csv(table).encode()),
    ]


def text(rows: Sequence[SummaryRow], folder: Path) -> str:
    """The page. folder: of the results; a link to a file that it lacks is left out."""
    return "\n".join(_lines(rows, folder)).rstrip() + "\n"


def _lines(rows: Sequence[SummaryRow], folder: Path) -> Iterator[str]:
    headlines = [one for one in rows if one.headline is not None]
    others = [one for one in rows if one.headline is None and one.results]
    yield from ("# What four papers claim, and what was found", "", *_in_short(headlines))
    if (folder / _ABOUT).exists():
        yield f"[How the results were made]({_ABOUT}) has their data, seeds, commands and machines."
    yield ""
    yield from (f"- {sentence}" for sentence in _READING)
    yield ""
    for paper in _papers(headlines):
        own = [one for one in headlines if one.preset.paper == paper]
        yield from (f"## {_heading(paper)}", "", *_table(own, folder), "")
        yield from (sentence for one in own for sentence in _why(one, folder))
        yield ""
    if others:
        yield from ("## Further claims", "", "Other claims of the papers, and those of our own controls.", "")
    for paper in _papers(others):
        own = [one for one in others if one.preset.paper == paper]
        yield from (f"### {_heading(paper)}: further claims", "", *_table(own, folder), "")
    yield from _not_run(rows)
    yield from ("## How verdicts are reached", "", escaped(RULE))


def _papers(rows: Sequence[SummaryRow]) -> list[str]:
    return list(dict.fromkeys(one.preset.paper for one in rows))


def _heading(paper: str) -> str:
    return paper[0].upper() + paper[1:]


def _in_short(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """`Of 14 headline claims 1 holds, 11 do not hold, 1 cannot be told and 1 is not run.`"""
    counts = Counter(_answer(one) for one in rows)
    verbs = {"does not hold": ("does not hold", "do not hold"), "holds": ("holds", "hold")}
    verbs |= {"cannot be told": ("cannot be told",) * 2, NOT_RUN: ("is not run", "are not run")}
    parts = [f"{counts[answer]} {verbs[answer][counts[answer] != 1]}" for answer in _ANSWERS if counts[answer]]
    yield f"Of {count(len(rows), 'headline claim')} {listed(parts)}."
    alone = sum(one.largest is not None and one.largest.verdict.seeds_n == 1 for one in rows)
    if alone:
        words = ("is", "it") if alone == 1 else ("are", "them")
        yield f"{count(alone, 'verdict')} {words[0]} of one seed, and another seed may turn {words[1]}."
    small = [_answer(one) for one in rows if one.largest is not None and not one.largest.scale.is_full]
    if small:
        is_of = f"{'is' if len(small) == 1 else 'are'} of shorter or smaller runs than the paper's"
        refuted = small.count("does not hold")
        of_them = f"; {refuted} of them {verbs['does not hold'][refuted != 1]}" if refuted else ""
        yield f"{count(len(small), 'verdict')} {is_of}, where an effect of long ones may be absent{of_them}."


def _answer(one: SummaryRow) -> str:
    return one.largest.verdict.answer if one.largest is not None else NOT_RUN


def _table(rows: Sequence[SummaryRow], folder: Path) -> Iterator[str]:
    yield table_row(_HEADS)
    yield table_row(["---", "---", "---:", "---:", "---:", "---"], is_rule=True)
    yield from (table_row(_cells(one, folder), is_done=True) for one in rows)


def _cells(one: SummaryRow, folder: Path) -> list[str]:
    claim = escaped(one.headline.short if one.headline is not None else one.claim.text)
    result = one.largest
    if result is None:
        return [claim, NOT_RUN, NONE, NONE, _in_print(one.claim, one.printed), one.preset.name]
    verdict = result.verdict
    figures = verdict.figures
    return [
        claim,
        _verdict(one, verdict),
        NONE if figures is None else _ahead(figures),
        NONE if figures is None else _ours(one.claim, figures, verdict.deciding),
        _in_print(one.claim, verdict.printed),
        f"{_preset_link(one, result, folder)}, {result.scale}",
    ]


def _verdict(one: SummaryRow, verdict: Verdict) -> str:
    """`**holds**, 3 seeds`; `**does not hold**, ahead by less, one seed`."""
    parts = [f"**{verdict.answer}**"]
    if verdict.answer == "does not hold" and verdict.is_ahead and one.claim.level is None:
        parts.append("ahead by less")
    if one.headline is not None and one.headline.verdict == verdict.answer and one.headline.caveat:
        parts.append(escaped(one.headline.caveat))
    return ", ".join([*parts, *([_seeds(verdict)] if verdict.seeds else [])])


def _seeds(verdict: Verdict) -> str:
    """`one seed`, `3 seeds`, `one seed, 3 of the deciding comparison`; empty where no seed has a number."""
    if not verdict.seeds:
        return ""
    seeds = "one seed" if len(verdict.seeds) == 1 else count(len(verdict.seeds), "seed")
    return seeds if verdict.deciding is None else f"{seeds}, {verdict.seeds_n} of the deciding comparison"


def _ahead(figures: Figures) -> str:
    """`17 of 21`, `3 of 3, 18 missing`."""
    missing = f", {figures.missing} missing" if figures.missing else ""
    return f"{figures.ahead} of {figures.pairs}{missing}"


def _ours(claim: Claim, figures: Figures, deciding: DecidingPair | None) -> str:
    """`+1.42 points (+0.90 to +1.94)`; the least of several comparisons; the value beside a level; the lead in the
    deciding comparison.
    """
    if figures.nearest is not None:
        of = measure(claim.measure)
        return f"{of.text(figures.nearest)} {of.unit}".rstrip()
    parts = [f"{figures.bound}{_lead(claim, figures.lead)}"]
    if figures.pairs > 1:
        parts.append(f"least {lead_text(claim, figures.least[0])}")
    if deciding is not None:
        parts.append(f"deciding {_lead(claim, deciding.lead)}")
    return ", ".join(parts)


def _lead(claim: Claim, lead: Spread) -> str:
    """`+1.42 points (+0.90 to +1.94)`."""
    if lead.low is None or lead.high is None:
        return lead_text(claim, lead.mean)
    low, high = (lead_text(claim, end).partition(" ")[0] for end in (lead.low, lead.high))
    return f"{lead_text(claim, lead.mean)} ({low} to {high})"


def _in_print(claim: Claim, printed: Printed | None) -> str:
    if claim.level is not None:
        unit = measure(claim.measure)
        return f"level {unit.text(claim.level)} {unit.unit}".rstrip()
    if printed is not None:
        least = f", least {lead_text(claim, printed.least)}" if printed.pairs > 1 else ""
        return f"{lead_text(claim, printed.lead)}{least}"
    if claimed(claim):
        return f"at least {lead_text(claim, claimed(claim))}{' in each' if claim.each else ''}"
    return NONE


def _preset_link(one: SummaryRow, result: SizedVerdict, folder: Path) -> str:
    """Links to the pages of the presets that the runs were computed for, the claim's own where it is one of them: of
    published results, or of a store's results of that size.
    """
    own, slug = one.preset.name, result.run_scale.at(one.preset.cells).slug
    names = [own] if own in result.computed_for else result.computed_for
    return ", ".join(
        next((link for place in (name, slug) if (link := _link(name, f"{place}/{name}.md", folder)) != name), name)
        for name in names
    )


def _link(label: str, file: str, folder: Path) -> str:
    """A link to a file beside the page, or the label if there is none."""
    return f"[{escaped(label)}]({file})" if (folder / file).exists() else escaped(label)


def _why(one: SummaryRow, folder: Path) -> Iterator[str]:
    """A sentence on the verdict: the written one if it is of this verdict, else the figures of one that is open."""
    result, headline = one.largest, one.headline
    assert headline is not None
    if result is None:
        return
    verdict = result.verdict
    if headline.verdict == verdict.answer:
        evidence = ", ".join(_link(Path(file).stem, file, folder) for file in headline.evidence)
        yield f"- *{escaped(headline.short)}*: {escaped(headline.why)}{f' ({evidence})' if evidence else ''}"
    elif verdict.answer == "cannot be told":
        yield f"- *{escaped(headline.short)}*: {escaped(verdict.why)}"


def _not_run(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """The presets with claims that are not run, in one paragraph."""
    counts = Counter(one.preset.name for one in rows if not one.results)
    if counts:
        yield from ("## Not run", "")
        yield f"{count(counts.total(), 'claim')}: {', '.join(f'{name} ({number})' for name, number in counts.items())}."
        yield ""


_COLUMNS = (
    *("paper", "preset", "claim", "is_headline", "verdict", "seeds", "comparisons", "missing", "ahead", "bound"),
    *("lead", "low", "high", "least", "unit", "printed", "printed_least", "claimed", "measure"),
    *("scale_rounds", "scale_clients", "scale_data", "scale_iterations", "why"),
)


def of_programs(rows: Sequence[SummaryRow]) -> Table:
    """A row for each claim and size, with numbers as in `lead_text`, per cent as a share of 1."""
    return Table(
        name=NAME,
        caption="Claims",
        columns=tuple(Column(name=name, head=name) for name in _COLUMNS),
        rows=[_of_size(one, result) for one in rows for result in (*one.results, *([None] * (not one.results)))],
    )


def _of_size(one: SummaryRow, result: SizedVerdict | None) -> tuple[Cell, ...]:
    claim, of = one.claim, measure(one.claim.measure)
    verdict = None if result is None else result.verdict
    printed = one.printed if verdict is None else verdict.printed
    figures = None if verdict is None else verdict.figures
    lead = None if figures is None or claim.level is not None else figures.lead
    ends = (None,) * 3 if lead is None else (lead.mean, lead.low, lead.high)
    scale = None if result is None else result.scale
    return (
        *(one.preset.paper, one.preset.name, claim.text, one.headline is not None),
        *((NOT_RUN, 0) if verdict is None else (verdict.answer, len(verdict.seeds))),
        *((None,) * 4 if figures is None else (figures.pairs, figures.missing, figures.ahead, figures.bound.strip())),
        *(_number(claim, end) for end in ends),
        None if figures is None else _number(claim, figures.least[0]),
        "times" if claim.as_ratio else "ratio" if of.unit == "%" else of.unit,
        *((None,) * 2 if printed is None else (_number(claim, printed.lead), _number(claim, printed.least))),
        *(_number(claim, claimed(claim)) if claimed(claim) else None, claim.measure),
        *((None,) * 4 if scale is None else (scale.rounds, scale.clients, scale.data, scale.iterations)),
        "" if verdict is None else verdict.why,
    )


def _number(claim: Claim, lead: float | None) -> float | None:
    """A lead in the unit of its measure, or a factor; rounded, since the last digits differ between machines."""
    if lead is None:
        return None
    return float(f"{exp(lead) if claim.as_ratio else lead:.9g}")
