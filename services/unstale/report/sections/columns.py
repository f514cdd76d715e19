"""Columns that several tables have."""

from unstale.report.content import Column
from unstale.report.statistics import Spread

GROUP = Column(name="group", head="group")
RUN = Column(name="run", head="run")
RUNS = Column(name="runs", head="runs", form=",")
VERSION = Column(name="version", head="version", form=",")
STALENESS = Column(name="staleness_rounds", head="staleness", form=",")
CLIENT = Column(name="client_id", head="client", form="d")
METHOD = Column(name="method", head="method")

SPREAD = ("mean", "std", "low", "high")
INTERVAL = ("mean", "low", "high")
MEAN = ("mean", "std")

_HEADS = {"std": "± std", "low": "95 % from", "high": "to"}


def of_spread(
    measure: str, unit: str, form: str, parts: tuple[str, ...] = SPREAD, *, head: str = ""
) -> tuple[Column, ...]:
    """One for each of these parts of a `Spread`: `accuracy_mean_ratio`. unit: "" for none. head: of the mean."""
    return tuple(
        Column(
            name="_".join(word for word in (measure, part, unit) if word),
            head=_HEADS.get(part, head or f"{measure}, mean"),
            form=form,
        )
        for part in parts
    )


def cells(of: Spread, parts: tuple[str, ...] = SPREAD) -> tuple[float, ...]:
    """What stands in them."""
    return tuple(getattr(of, part) for part in parts)
