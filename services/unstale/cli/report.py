"""`unstale report`: report recorded runs as a page, tables and pictures."""

from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.parameters import AsJson
from unstale.cli.printing import json_line, line

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; they are only read.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; an existing file is overwritten.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FOLDER", help="Write a CSV file for each table.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FOLDER", help="Write a PNG file for each picture.")]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="KEY",
        help="Group runs by the value of this key, or of all keys of this section. May be repeated. By default runs "
        "that differ only in their seed form a group.",
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="NAME", help="Name of a group. Repeat it for each group, in the order of their first runs."
    ),
]
Target = Annotated[
    list[float] | None,
    typer.Option(
        "--target",
        metavar="VALUE",
        help="Show the rounds, seconds and updates that runs needed to reach this accuracy, such as 0.9, or value of "
        "their main metric. May be repeated.",
    ),
]


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
    from unstale.report import files, make  # imports torch and matplotlib

    folders = [(option, folder) for option, folder in (("--csv", csv), ("--png", png)) if folder is not None]
    files.check(runs, out, folders)
    made = make.report(runs, by=by, labels=label, targets=target)
    files.write_page(made, out)
    tables = files.write_tables(made, csv) if csv is not None else []
    pictures = files.write_pictures(made, png) if png is not None else []
    if as_json:
        json_line("reported", {"page": out, "tables": tables, "pictures": pictures, "notes": made.notes})
        return
    for note in made.notes:
        line(note)
    for folder, written, kind in ((csv, tables, "tables"), (png, pictures, "pictures")):
        if folder is not None:
            line(f"{folder}: {len(written)} {kind} written")
    line(f"{out}: written")
