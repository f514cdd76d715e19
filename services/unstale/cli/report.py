"""`unstale report`: one or several recorded runs as a page, tables and pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing as told

if TYPE_CHECKING:
    from unstale.report.content import Report

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Directories of runs; they are only read.", show_default=False),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; an older one is written over.")]
Csv = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FOLDER", help="Write every table here, one CSV file each.", show_default=False
    ),
]
Png = Annotated[
    Path | None,
    typer.Option(
        "--png", metavar="FOLDER", help="Write every picture here, one PNG file each.", show_default=False
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="KEY",
        help="Runs with the same value of this key, or section, form a group; may be repeated. Without it, runs that "
        "differ only in their seed do.",
        show_default=False,
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="Name of a group; repeated, one for each, in the order of their first runs.",
        show_default=False,
    ),
]
Target = Annotated[
    list[float] | None,
    typer.Option(
        "--target",
        metavar="ACCURACY",
        help="Tell how many rounds, seconds and updates it took to be so accurate, such as 0.9; may be repeated.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line, for programs.")]


def report(
    runs: Runs,
    out: Out = Path("report.html"),
    csv: Csv = None,
    png: Png = None,
    by: By = None,
    label: Label = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Write tables and plots of one or several runs into one HTML file."""
    from unstale.report import files  # imports torch and matplotlib
    from unstale.report.make import report as made

    folders = [(option, folder) for option, folder in (("--csv", csv), ("--png", png)) if folder is not None]
    files.check(runs, out, folders)
    of_runs = made(runs, by=by or (), labels=label or (), targets=target or ())
    files.write_page(of_runs, out)
    tables = files.write_tables(of_runs, csv) if csv is not None else []
    pictures = files.write_pictures(of_runs, png) if png is not None else []
    if as_json:
        _tell_programs(of_runs, out, tables, pictures)
    else:
        _tell(of_runs, out, csv, len(tables), png, len(pictures))


def _tell(
    of_runs: "Report", out: Path, csv: Path | None, tables: int, png: Path | None, pictures: int
) -> None:
    for note in of_runs.notes:
        told.line(note)
    if csv is not None:
        told.line(f"{csv}: {tables} tables written")
    if png is not None:
        told.line(f"{png}: {pictures} pictures written")
    told.line(f"{out}: written")


def _tell_programs(of_runs: "Report", out: Path, tables: list[Path], pictures: list[Path]) -> None:
    facts = {
        "page": str(out),
        "tables": [str(file) for file in tables],
        "pictures": [str(file) for file in pictures],
        "notes": list(of_runs.notes),
    }
    told.json_line("reported", facts)
