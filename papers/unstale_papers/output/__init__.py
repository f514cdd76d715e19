"""What was reproduced, on disk: for each preset a page, a Markdown file, CSV files and pictures; and a list of all."""

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

    scale: that it was computed at. about: sentences on where and how, such as the machine. data: file by the data set
    in whose place it was read. seeds: that were asked for, where not all of them are there. failures: tracebacks by
    cell and seed. The folder is made. Gives the files. Raises UserError for what the disk can do.
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
    """Write index.html and index.md, which list presets with their verdicts in short. scales: by preset. seeds: that
    were asked for.
    """
    return _pages(document.index(comparisons, scales or {}, seeds), folder)


def _pages(made: document.Document, folder: Path) -> list[Path]:
    files.make(folder)
    return [
        files.write(folder / f"{made.name}.md", markdown.text(made).encode()),
        files.write(folder / f"{made.name}.html", page.html(made.report).encode()),
    ]


def _of_page(made: document.Document) -> set[str]:
    """Tables whose numbers NAME.csv has."""
    return {table.name for table in made.report.tables if any(one.is_stacked for one in table.columns)}
