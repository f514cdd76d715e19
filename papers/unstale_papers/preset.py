"""A published table or figure: cells, each one configuration, and their printed numbers. Pure.

A preset does not set seeds, scale or place.
Source: docs/methods/experiments.md#experiments-of-the-papers
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from unstale.config.settings import Settings

Paper = Literal["FedHist", "WKAFL", "gradient inversion", "FedAR", "FedBuff", "FedAsync", "policy guide"]
GUIDE: Paper = "policy guide"
"""No paper, but an experiment of unstale."""

Labels = Mapping[str, str]
"""Labels of a cell, by axis: `{"data": "CIFAR-10", "beta": "0.3", "N/K": "100", "method": "FedHist"}`."""


def nothing() -> Mapping[str, Any]:
    """An immutable empty mapping."""
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Number:
    """A published number. value: in the unit of its measure; of `< 45 %` it is the bound. text: As printed, with its
    unit and signs.
    """

    value: float
    text: str

    @property
    def is_bound(self) -> bool:
        """Whether the printed number is only an upper or lower bound."""
        return self.text.startswith(("<", ">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a setting that every cell has, or that an axis sets.

    key: of the settings, or a description where it is not a setting, such as `N`. value: as users write it. tag:
    `paper` if published; else `R:` and a name for released code, `[M]` if it follows from published settings, `[P]`
    if we propose it. why: a sentence of further explanation.
    """

    key: str
    value: str
    tag: str
    why: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether the paper does not give it."""
        return self.tag != "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration of a preset.

    labels: its position in the table. settings: complete except seed, data.cache, device and threads, which the caller
    sets. measurement: a name in `runners.MEASUREMENTS`. options: of the measurement. scenario: text of a scenario file,
    where no ready one fits; None keeps settings.scenario. in_rounds: further keys of options and settings that count
    rounds and scale with them (`policy.settings.stage_rounds`, `training.schedule.period`). in_iterations: keys that
    count an inversion's iterations, as `compensator.settings.iterations` does. published: by measure.
    """

    labels: Labels
    settings: Settings
    measurement: str = "run"
    options: Mapping[str, Any] = field(default_factory=nothing)
    in_rounds: tuple[str, ...] = ()
    in_iterations: tuple[str, ...] = ()
    scenario: str | None = None
    published: Mapping[str, Number] = field(default_factory=nothing)

    @property
    def name(self) -> str:
        """`data=CIFAR-10 beta=0.3 method=FedHist`: unique in its preset, and matched by --cells."""
        return " ".join(f"{axis}={value}" for axis, value in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure: one line for each value of `line`, one panel for each of the other axes' values.

    shows: `accuracy`, `loss`, `class accuracy 5`, `training loss`, ... as in `output.shows`. target: a level that is
    also drawn.
    """

    title: str
    shows: str
    line: str
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published table or figure.

    name: `fh-t2`. item: the paper's number. data: required data sets, names of `unstale data list`. measures: of its
    table, names in `table_metrics.MEASURES`. rows, columns: axes of the table. method: the axis whose values are
    ranked. sources: of its settings. missing: published items that are not computed here, with the reason.
    """

    name: str
    paper: Paper
    item: str
    title: str
    cells: tuple[Cell, ...]
    measures: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sources: tuple[Source, ...]
    method: str = "method"
    curves: tuple[Curve, ...] = ()
    claims: tuple["Claim", ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """`Table 1 of the paper on FedHist`, or `digits of the policy guide`."""
        return f"{self.item} of the {'' if self.paper == GUIDE else 'paper on '}{self.paper}"

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        assert len(set(names)) == len(names), f"{self.name}: two cells have the same name"
        assert {axis for cell in self.cells for axis in cell.labels} <= {*self.rows, *self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper that a table can test.

    text: the claim in our words, with the printed numbers. measure: of the claim. better, worse: labels that select
    cells, compared where all labels are equal except those that `worse` names and, if `better` names it, the preset's
    method; with `worse` empty and no method in `better`, except those of `better`. at_least: the claimed lead on
    average, in the measure's unit, or a factor with `as_ratio`. each: the lead is in every comparison and not on
    average. level: each cell of `better` reaches it and none of `worse`, in the measure's unit; with it, cells are not
    compared with each other, and an empty `better` or `worse` selects none. without: labels of excluded cells, such as
    a method that is not in the paper. For a measure that is better when smaller (rounds to a target), better is
    smaller.
    """

    text: str
    measure: str
    better: Labels = field(default_factory=nothing)
    worse: Labels = field(default_factory=nothing)
    at_least: float = 0.0
    as_ratio: bool = False
    each: bool = False
    level: float | None = None
    without: Labels = field(default_factory=nothing)

    def __post_init__(self) -> None:
        assert self.level is None or not (self.at_least or self.as_ratio), f"{self.text}: a level or a lead"
        assert self.at_least >= 0 and not (self.as_ratio and 0 < self.at_least < 1), f"{self.text}: ahead is ahead"

    @property
    def is_of_each(self) -> bool:
        """Whether every comparison counts, and no average makes up for one."""
        return self.each or self.level is not None
