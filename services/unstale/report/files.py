"""A report on disk: one page, a CSV file a table, a PNG file a picture."""

import csv
import io
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.disk import trouble
from unstale.report import drawing, page
from unstale.report.content import Cell, Report, Table


def check(runs: Sequence[Path], page_file: Path, folders: Sequence[tuple[str, Path]]) -> None:
    """Before runs are read, which may take long. folders: with the option that named each.

    Raises UserError for what cannot be written, or lies in a run directory: those are only read.
    """
    if page_file.is_dir() or not page_file.parent.is_dir():
        raise UserError(f"--out is {page_file}, expected a file in a folder that exists; name another")
    for option, folder in folders:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{option} is {folder}, which is a file, expected a folder; name another")
        if not folder.parent.is_dir():
            raise UserError(
                f"{option} is {folder}, expected a folder in one that exists; make {folder.parent} first"
            )
    for option, path in (("--out", page_file), *folders):
        for run in runs:
            if path.resolve().is_relative_to(run.resolve()):
                raise UserError(
                    f"{option} is {path}, which lies in the run {run}; name a place outside, for runs are only read"
                )


def write_page(report: Report, file: Path) -> None:
    """Raises UserError when it cannot be."""
    write(file, page.html(report).encode())


def write_tables(report: Report, folder: Path) -> list[Path]:
    """One CSV file a table. Raises UserError."""
    make(folder)
    files = [folder / f"{table.name}.csv" for table in report.tables]
    for table, file in zip(report.tables, files, strict=True):
        write(file, as_csv(table).encode())
    return files


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """One PNG file a picture. Raises UserError."""
    make(folder)
    files = [folder / f"{picture.name}.png" for picture in report.pictures]
    for picture, file in zip(report.pictures, files, strict=True):
        write(file, drawing.png(picture))
    return files


def as_csv(table: Table) -> str:
    """Names of columns, then rows, with line feeds; numbers to their last bit, and nothing for what is none."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows([_plain(cell) for cell in row] for row in table.rows)
    return written.getvalue()


def _plain(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return cell if isinstance(cell, str) else repr(cell)


def make(folder: Path) -> None:
    """Unless it is there. Raises UserError when it cannot be."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise trouble("make the folder", folder, error) from None


def write(file: Path, data: bytes) -> Path:
    """Gives the file. Raises UserError when it cannot be written."""
    try:
        file.write_bytes(data)
    except OSError as error:
        raise trouble("write", file, error) from None
    return file
