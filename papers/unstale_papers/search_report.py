"""The report of a search: sentences and tables for the terminal, and a document to check in."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from unstale.report.content import NONE, Column, Report, Section, Table, count, listed
from unstale_papers.choose import data_sets
from unstale_papers.comparison import Comparison
from unstale_papers.jobs import File
from unstale_papers.output import configured
from unstale_papers.output.document import Document
from unstale_papers.output.report_context import ReportContext
from unstale_papers.scale import Scale, lost
from unstale_papers.search import Over, Search, named, spelled
from unstale_papers.search_ranking import PUBLISHED, RULE, CandidateScore, Outcome, Ranking

KIND = "search"
MADE_FROM = "from what was computed here"
_OWN = "These are the cells as the preset has them: a candidate has other values at {keys}."


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """The content of a report. over, draws: the requested search, with number and seed of the draws. scale, files: of
    its runs. command: repeats the search.
    """

    outcome: Outcome
    together: bool
    over: Sequence[Over]
    draws: tuple[int, int] | None
    scale: Scale
    files: Mapping[str, File]
    command: str

    @property
    def rankings(self) -> list[Ranking]:
        return self.outcome.rankings(together=self.together)


def summary(result: SearchReport, ranking: Ranking) -> str:
    """Sentences on the best candidate and the confidence."""
    return " ".join(_sentences(result.outcome, ranking))


def _sentences(outcome: Outcome, ranking: Ranking) -> Iterator[str]:
    where = _name(ranking)
    if not ranking.best:
        yield f"{where}: no candidate has a number; of their runs {_missing_text(*ranking.standings)}."
        return
    first, *others = ranking.best
    yield f"{where}: best is {named(first.candidate)} with {_value_text(outcome, first)}."
    if others:
        alike = [named(one.candidate) for one in others]
        yield f"{listed(alike)} {'is' if len(alike) == 1 else 'are'} just as good."
    if first.lacking:
        yield f"It lacks a number in {first.lacking} of {count(first.runs, 'run')}: {_missing_text(first)}."
    if ranking.next is not None:
        yield _of_the_next(outcome, ranking, ranking.next)
    elif not others:
        yield "No other candidate has a number."
    edges = ranking.at_the_edge()
    if edges:
        yield f"It has {listed(edges)} of all that were tried, so a better one may lie beyond."


def _of_the_next(outcome: Outcome, ranking: Ranking, behind: CandidateScore) -> str:
    head = f"The next one, {named(behind.candidate)}, with {_value_text(outcome, behind)}"
    first = ranking.best[0]
    if behind.lacking > first.lacking:
        return f"{head}, lacks a number in {behind.lacking} of {count(behind.runs, 'run')}: {_missing_text(behind)}."
    if len(outcome.seeds) == 1:
        return f"{head}, is behind in this one seed; there is no spread, and another seed may turn the order."
    if ranking.test is None:
        return f"{head}, shares too few seeds with it to tell them apart."
    p = f"paired t-test over {ranking.test.n} seeds, p = {ranking.test.p:.2g}"
    if ranking.is_settled:
        return f"{head}, is behind by more than the seeds' spread ({p})."
    return f"{head}, is within the seeds' spread ({p}): these seeds do not tell them apart."


def _name(ranking: Ranking) -> str:
    cells = ranking.cells
    return cells[0].name if len(cells) == 1 else f"{len(cells)} cells together"


def _measured(outcome: Outcome, one: CandidateScore) -> str:
    """`57.19 ± 0.42`; empty without a number."""
    of = outcome.goal.measure
    if one.spread is None:
        return ""
    return of.text(one.spread.mean) + ("" if one.spread.std is None else f" ± {of.text(one.spread.std)}")


def _value_text(outcome: Outcome, one: CandidateScore) -> str:
    """`57.19 ± 0.42 %, 0.42 points off the target`."""
    unit = outcome.goal.measure.unit
    off = "" if one.off is None else f", {outcome.goal.off_text(one.off)} off the target"
    return f"{_measured(outcome, one)}{' ' * bool(unit)}{unit}{off}"


def _missing_text(*those: CandidateScore) -> str:
    """`2 missed the target, 1 failed`."""
    lacks = sum((Counter(one.lacks) for one in those), Counter[str]())
    return ", ".join(f"{many} {why}" for why, many in lacks.items())


def table(result: SearchReport, ranking: Ranking, number: int = 1) -> Table:
    """All candidates, best first. number: of the table, in a document."""
    outcome = result.outcome
    of = outcome.goal.measure
    how = "mean of one seed" if len(outcome.seeds) == 1 else "mean ± standard deviation over seeds"
    cells = ", over cells too" if len(ranking.cells) > 1 else ""
    if cells and of.counts_rounds:
        cells += " (the geometric mean)"
    keys = outcome.search.keys
    some_lack = any(one.lacking for one in ranking.standings)
    return Table(
        name=f"{outcome.search.preset.name}-search-{number}",
        caption=f"{_name(ranking)}: {of.heading} on the validation split, {how}{cells}; best first.",
        columns=(
            *(Column(name=key, head=key) for key in keys),
            Column(name="measured", head=of.heading),
            Column(name="off", head="off the target"),
            Column(name="runs", head="runs with a number"),
            Column(name="note", head="note"),
        ),
        rows=[
            (
                *(spelled(one.candidate[key]) for key in keys),
                _measured(outcome, one) or None,
                None if one.off is None else outcome.goal.off_text(one.off),
                f"{one.runs - one.lacking} of {one.runs}" if some_lack else None,
                _note(ranking, one),
            )
            for one in ranking.standings
        ],
    )


def _note(ranking: Ranking, one: CandidateScore) -> str | None:
    notes = ["best"] * (one in ranking.best)
    if one is ranking.next and ranking.test is not None and not ranking.is_settled and not one.lacking:
        notes.append("within the seeds' spread")
    notes += [_missing_text(one)] * bool(one.lacking)
    return "; ".join(notes) or None


def facts(result: SearchReport, ranking: Ranking) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "cells": [cell.name for cell in ranking.cells],
        "best": [dict(one.candidate) for one in ranking.best],
        "p_of_the_next": None if ranking.test is None else ranking.test.p,
        "says": summary(result, ranking),
        "candidates": [_facts(one) for one in ranking.standings],
    }


def _facts(one: CandidateScore) -> dict[str, Any]:
    spread = one.spread
    return {
        "candidate": dict(one.candidate),
        "mean": None if spread is None else spread.mean,
        "std": None if spread is None else spread.std,
        "off": one.off,
        "seeds": {str(seed): value for seed, value in one.values.items()},
        "runs": one.runs,
        "lacks": dict(one.lacks),
    }


# --- to check in ---


def document(result: SearchReport) -> Document:
    """The report as a document."""
    search = result.outcome.search
    rankings = result.rankings
    context = ReportContext(
        comparison=Comparison(preset=search.untouched, records={}), scale=result.scale, files=_named(result.files)
    )
    settings = configured.section(context)
    return Document(
        name=f"{search.preset.name}-search",
        report=Report(
            title=f"{search.preset.name}: a search over {listed(search.keys)}",
            subtitle=f"{search.preset.paper}, {search.preset.item}: {search.preset.title}",
            notes=list(_notes(result)),
            sections=[
                Section(
                    name="candidates",
                    title="Candidates",
                    sentences=[*(summary(result, one) for one in rankings), RULE],
                    tables=[table(result, one, number) for number, one in enumerate(rankings, 1)],
                ),
                replace(settings, sentences=[_OWN.format(keys=listed(search.keys)), *settings.sentences]),
            ],
            kind=KIND,
            made_from=MADE_FROM,
        ),
        figures=(),
        of_programs=(),
    )


def asked(search: Search, over: Sequence[Over], draws: tuple[int, int] | None) -> str:
    """Describe the candidates. draws: As in `SearchReport`."""
    how = "every combination"
    if draws is not None:
        how = f"what is different in {draws[0]:,} draws with seed {draws[1]}"
    return f"{count(len(search.candidates), 'candidate')}, {how} of {'; '.join(map(str, over))}"


def _notes(result: SearchReport) -> Iterator[str]:
    outcome = result.outcome
    of, search = outcome.goal.measure, outcome.search
    yield f"The same again: {result.command}"
    yield split(search.validation)
    yield f"Tried: {asked(search, result.over, result.draws)}."
    yield f"Searched by: {of.heading}. {of.what} Here the validation split stands for the test set."
    yield f"Best is {_wanted(outcome)}."
    scale = result.scale.at(search.cells)
    fewer = [f"Not full size: {scale}. The keys above have their values at full size.", *lost(search.cells, scale)]
    yield "Full size." if scale.is_full else " ".join(fewer)
    files = "".join(f" {name} is read from {file}." for name, file in _named(result.files).items())
    yield f"Data: {listed(data_sets(search.cells))}.{files}"
    records = outcome.comparison.records.values()
    seconds = timedelta(seconds=round(sum(record.seconds for record in records)))
    seeds = listed([str(seed) for seed in outcome.seeds])
    yield f"Seeds: {seeds}. {count(len(records), 'run')} took {seconds} of computing."


def split(validation: float) -> str:
    """The examples that candidates are measured on."""
    return (
        f"Measured on the last {100 * validation:g} % of each class of the training set, or of each group where the "
        f"test set is of the same groups, which clients do not get (data.validation {validation:g}). The test set is "
        "not looked at."
    )


def _wanted(outcome: Outcome) -> str:
    aim = outcome.goal
    how = "as a ratio" if aim.measure.counts_rounds else "by the difference"
    if aim.toward is None:
        return f"the {'highest' if aim.measure.better == 'higher' else 'lowest'}"
    if aim.toward == PUBLISHED:
        return f"the value nearest to the number in print of its own cell, {how}"
    return f"the value nearest to {aim.measure.text(aim.toward)} {aim.measure.unit}, {how}".replace(" ,", ",")


def _named(files: Mapping[str, File]) -> dict[str, str]:
    """A file by name and digest; its folder means nothing on other machines."""
    return {name: f"{file.path.rpartition('/')[2]} (SHA-256 {file.sha256[:12]}...)" for name, file in files.items()}


def texts(rows: Table) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table for a terminal."""
    columns, shown = rows.of_page
    return [column.head for column in columns], [
        [column.shown(cell).replace(NONE, "-") for column, cell in zip(columns, row, strict=True)] for row in shown
    ]
