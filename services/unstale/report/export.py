"""One table of a recorded run as a file for other programs: CSV or Parquet."""

import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from unstale.errors import UserError, unknown_name
from unstale.report import recorded
from unstale.report.files import write
from unstale.report.sections.clients import of_clients
from unstale.trackers.registry import REGISTRY as TRACKERS


def tables(run: recorded.Run) -> dict[str, pd.DataFrame]:
    """`rounds`, `updates`, `clients` and `evaluations` of a run, as `unstale.Run` has them."""
    columns = {recorded.column_of(name, run.metrics): recorded.plain_column_of(name) for name in run.metrics}
    evaluations = run.evaluations.rename(columns=columns).drop(columns="evaluate_s")
    evaluations.insert(2, "split", run.split)
    return {"rounds": run.rounds, "updates": run.updates, "clients": _clients(run), "evaluations": evaluations}


def _clients(run: recorded.Run) -> pd.DataFrame:
    """The clients' tasks, updates and weights, and the metrics of their last own evaluation."""
    clients = of_clients(run).sort_values("client_id", ignore_index=True)
    clients = clients.drop(columns=["run", *clients.columns[clients.columns.str.startswith("own_")]])
    names = {recorded.column_of(name, run.own_metrics): recorded.plain_column_of(name) for name in run.own_metrics}
    own = run.own_evaluations.rename(columns=names).groupby("client_id")[list(names.values())].last()
    return clients.join(own, on="client_id") if len(own) else clients


def export(folder: Path, file: Path, table: str) -> int:
    """Write a table of the run in a folder. Returns its number of rows. Raises UserError."""
    encode = _FORMATS.get(file.suffix)
    if encode is None:
        known = ", ".join(TRACKERS.names())
        raise UserError(f"--to is {file}, expected a name that ends with {' or '.join(_FORMATS)}, or one of {known}")
    if file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"--to is {file}, which lies in the run {folder}; choose a path outside: runs are only read")
    frames = tables(recorded.read(folder, folder.name))
    if table not in frames:
        raise unknown_name("--table", table, list(frames))
    write(file, encode(frames[table]))
    return len(frames[table])


def _csv(frame: pd.DataFrame) -> bytes:
    """Names of columns, then rows; numbers with every digit, missing ones empty."""
    return str(frame.to_csv(index=False, lineterminator="\n")).encode()


def _parquet(frame: pd.DataFrame) -> bytes:
    try:
        import pyarrow  # noqa: F401  (pandas needs it)
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow, which is not installed; pip install 'unstale[parquet]', or use .csv"
        ) from None
    file = io.BytesIO()
    frame.to_parquet(file, index=False, engine="pyarrow")
    return file.getvalue()


_FORMATS: dict[str, Callable[[pd.DataFrame], bytes]] = {".csv": _csv, ".parquet": _parquet}
