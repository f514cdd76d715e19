"""One preset as a document, the source of the page, the Markdown file and the CSV files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from unstale.report.content import Cell, Column, Report, Section, Table, count, listed
from unstale_papers.choose import data_of
from unstale_papers.comparison import Comparison
from unstale_papers.output import configured, figures, findings, tables
from unstale_papers.output.figures import Figure
from unstale_papers.output.report_context import ReportContext, notes
from unstale_papers.scale import Scale
from unstale_papers.verdicts import verdicts

KIND = "reproduction"
MADE_FROM = "from the numbers that papers print and from what was computed here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """name: of its files. of_programs: tables only for programs."""

    name: str
    report: Report
    figures: Sequence[Figure]
    of_programs: Sequence[Table]


def document(context: ReportContext) -> Document:
    """The document of a preset."""
    preset = context.preset
    drawn = figures.figures(context)
    sections = (
        tables.section(context),
        findings.claims(context),
        findings.orders(context),
        figures.section(context, drawn),
        configured.section(context),
        findings.missing(context),
        findings.rules(),
    )
    return Document(
        name=preset.name,
        report=Report(
            title=f"{preset.name}: {preset.title}",
            subtitle=f"{preset.origin}; {count(len(preset.cells), 'cell')} on "
            f"{data_of(preset.cells)}; {context.own_scale}",
            notes=notes(context),
            sections=[section for section in sections if section is not None],
            kind=KIND,
            made_from=MADE_FROM,
            all_rows="the CSV file has all",
        ),
        figures=drawn,
        of_programs=(tables.numbers(context), tables.by_seed(context)),
    )


_INDEX = (
    Column(name="preset", head="preset", is_page=True),
    Column(name="published", head="published as"),
    Column(name="title", head="what it is"),
    Column(name="scale", head="size"),
    Column(name="seeds", head="seeds", form="d"),
    Column(name="runs", head="runs done", form=",d"),
    Column(name="runs_wanted", head="of", form=",d"),
    Column(name="claims_hold", head="claims that hold", form="d"),
    Column(name="claims_do_not_hold", head="do not hold", form="d"),
    Column(name="claims_cannot_be_told", head="cannot be told", form="d"),
    Column(name="orders", head="orders", form="d"),
    Column(name="tau_mean", head="Kendall's tau, mean", form=".2f"),
)


def index(comparisons: Sequence[Comparison], scales: Mapping[str, Scale], seeds: Sequence[int] = ()) -> Document:
    """A row for each preset. scales: by name, optional for each. seeds: requested."""
    rows: list[tuple[Cell, ...]] = []
    for comparison in comparisons:
        preset = comparison.preset
        context = ReportContext(comparison=comparison, scale=scales.get(preset.name, Scale()), seeds=seeds)
        answers = Counter(verdict.answer for verdict in verdicts(comparison))
        taus = findings.taus(comparison)
        rows.append(
            (
                *(preset.name, f"{preset.paper}, {preset.item}", preset.title),
                str(context.own_scale) if preset.name in scales else None,
                *(len(context.wanted), context.done, len(preset.cells) * len(context.wanted)),
                *(answers[answer] for answer in findings.ANSWERS),
                *(len(taus), fmean(taus) if taus else None),
            )
        )
    table = Table(name="index", caption="Presets, each with a page of its own", columns=_INDEX, rows=rows)
    listing = Section(name="presets", title="Presets", tables=[table])
    return Document(
        name="index",
        report=Report(
            title="Published tables and figures, computed again",
            subtitle=f"{count(len(comparisons), 'preset')} of "
            f"{listed(list(dict.fromkeys(one.preset.paper for one in comparisons))) or 'no paper'}",
            notes=["What is not at full size says so; each page says what was run, on what data and how long."],
            sections=[listing, findings.rules()],
            kind=KIND,
            made_from=MADE_FROM,
        ),
        figures=(),
        of_programs=(),
    )
