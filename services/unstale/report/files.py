"""Write a report: one page, a CSV file for each table, a PNG file for each picture."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

from matplotlib.figure import Figure

from unstale.errors import UserError
from unstale.report import drawing, page
from unstale.report.content import Cell, Report, Table
from unstale_client.disk import trouble


def check(runs: Sequence[Path], page_file: Path, folders: Sequence[tuple[str, Path]]) -> None:
    """Check destinations before runs are read, which may take long. folders: each with its option.

    Raises UserError for a destination that cannot be written, or lies in a run directory.
    """
    if page_file.is_dir() or not page_file.parent.is_dir():
        raise UserError(f"--out is {page_file}, expected a file in an existing folder; choose another")
    for option, folder in folders:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{option} is {folder}, which is a file, expected a folder; choose another")
        if not folder.parent.is_dir():
            raise UserError(f"{option} is {folder}, expected a folder in an existing one; make {folder.parent} first")
    for option, path in (("--out", page_file), *folders):
        for run in runs:
            if path.resolve().is_relative_to(run.resolve()):
                raise UserError(
                    f"{option} is {path}, which lies in the run {run}; choose a path outside: runs are only read"
                )


def write_page(report: Report, file: Path) -> None:
    """Write the page. Raises UserError."""
    write(file, page.html(report).encode())


def write_tables(report: Report, folder: Path) -> list[Path]:
    """Write a CSV file for each table. Raises UserError."""
    make(folder)
    return [write(folder / f"{table.name}.csv", as_csv(table).encode()) for table in report.tables]


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Write a PNG file for each picture. Raises UserError."""
    make(folder)
    return [write(folder / f"{picture.name}.png", drawing.png(picture)) for picture in report.pictures]


def as_csv(table: Table) -> str:
    """Return names of columns, then rows, with line feeds; numbers with every digit, missing ones empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in table.rows)
    return text.getvalue()


def _csv_cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return cell if isinstance(cell, str) else repr(cell)


def make(folder: Path) -> None:
    """Make a folder if it does not exist. Raises UserError."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise trouble("make the folder", folder, error) from None


def write(file: Path, data: bytes) -> Path:
    """Write a file and return its path. Raises UserError."""
    try:
        file.write_bytes(data)
    except OSError as error:
        raise trouble("write", file, error) from None
    return file


@contextmanager
def figure(file: Path, inches: tuple[float, float], title: str = "") -> Iterator[Figure]:
    """Give an empty figure in the look of reports, and write it as PNG at the end. Raises UserError."""
    with drawing.look(file.stem):
        empty = Figure(figsize=inches, layout="constrained")
        if title:
            empty.suptitle(title, fontsize="medium", wrap=True)
        yield empty
        write(file, drawing.as_png(empty))
