"""Reproduced results on disk: a page, a Markdown file, CSV files and pictures per preset, and an index."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from unstale.report import files, page
from unstale_papers.comparison import Comparison
from unstale_papers.output import document, markdown, plots
from unstale_papers.output.report_context import ReportContext
from unstale_papers.scale import Scale


def write(
    comparison: Comparison,
    folder: Path,
    *,
    scale: Scale,
    about: Sequence[str],
    data: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (),
    failures: Mapping[tuple[str, int], str] | None = None,
) -> list[Path]:
    """Write NAME.md, NAME.html, NAME.csv with further NAME-....csv, and NAME-1.png, ... of each figure.

    scale: of the computation. about: sentences on machine and versions. data: file by the data set that it replaces.
    seeds: the requested ones, where some are missing. failures: tracebacks by cell and seed. Creates the folder and
    returns the files. Raises UserError for disk errors.
    """
    context = ReportContext(
        comparison=comparison, scale=scale, about=about, files=data or {}, seeds=seeds, failures=failures or {}
    )
    made = document.document(context)
    written = _pages(made, folder)
    for table in (*made.of_programs, *(one for one in made.report.tables if one.name not in _of_page(made))):
        written.append(files.write(folder / f"{table.name}.csv", files.as_csv(table).encode()))
    for figure in made.figures:
        pixels = plots.sheet(figure.name, figure.title, figure.panels)
        written.append(files.write(folder / f"{figure.name}.png", pixels))
    return written


def index(
    comparisons: Sequence[Comparison],
    folder: Path,
    *,
    scales: Mapping[str, Scale] | None = None,
    seeds: Sequence[int] = (),
) -> list[Path]:
    """Write index.html and index.md, which list presets with summarized verdicts. scales: by preset. seeds:
    requested.
    """
    return _pages(document.index(comparisons, scales or {}, seeds), folder)


def _pages(made: document.Document, folder: Path) -> list[Path]:
    files.make(folder)
    return [
        files.write(folder / f"{made.name}.md", markdown.text(made).encode()),
        files.write(folder / f"{made.name}.html", page.html(made.report).encode()),
    ]


def _of_page(made: document.Document) -> set[str]:
    """Tables that NAME.csv already contains."""
    return {table.name for table in made.report.tables if any(one.is_stacked for one in table.columns)}
