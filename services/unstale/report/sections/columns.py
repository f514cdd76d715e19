"""Columns that several tables share, and tables from data frames."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from unstale.report.content import Cell, Column, Table
from unstale.report.statistics import Spread

GROUP = Column("group", "group")
RUN = Column("run", "run")
RUNS = Column("runs", "runs", ",")
VERSION = Column("version", "version", ",")
STALENESS = Column("staleness_rounds", "staleness", ",")
CLIENT = Column("client_id", "client", "d")
METHOD = Column("method", "method")
UPDATES = Column("updates", "updates", ",")
ACCURACY = Column("accuracy_ratio", "accuracy", ".4f")
LOSS = Column("loss_nats", "loss, nats", ".4f")
EXAMPLES = Column("num_examples", "examples", ",")
KEY = Column("key", "key")

SPREAD = ("mean", "std", "low", "high")  # attributes of `Spread`, in the order of their columns
INTERVAL = ("mean", "low", "high")
MEAN = ("mean", "std")

_HEADS = {"std": "± std", "low": "95 % from", "high": "to"}


def of_spread(
    measure: str, unit: str, form: str, parts: tuple[str, ...] = SPREAD, *, head: str = ""
) -> tuple[Column, ...]:
    """Return columns of parts of a `Spread`, such as `accuracy_mean_ratio`. head: of the mean's column."""
    return tuple(
        Column("_".join(filter(None, (measure, part, unit))), _HEADS.get(part, head or f"{measure}, mean"), form)
        for part in parts
    )


def cells(spread: Spread, parts: tuple[str, ...] = SPREAD) -> tuple[float, ...]:
    """Return the cells of a spread for the columns that `of_spread` makes of the same parts."""
    return tuple(getattr(spread, part) for part in parts)


def versions(values: Iterable[Any]) -> str:
    """Return the range of version numbers as text: `5`, or `5 to 8`; "" for none."""
    numbers = sorted(set(values))
    return " to ".join(str(number) for number in dict.fromkeys((*numbers[:1], *numbers[-1:])))


def of_frame(
    name: str, caption: str, columns: tuple[Column, ...], frame: pd.DataFrame, *, rows_shown: int | None = None
) -> Table:
    """Return a table from a data frame, which has a column for each `Column.name`."""
    return Table(name, caption, columns, rows(frame, columns), rows_shown=rows_shown)


def rows(frame: pd.DataFrame, columns: Sequence[Column]) -> list[tuple[Cell, ...]]:
    """Return the cells of these columns, row by row, with None for missing values."""
    selected = frame[[column.name for column in columns]].astype(object)
    return list(selected.where(selected.notna(), None).itertuples(index=False, name=None))
