"""What a published table or figure is made of: cells, each one configuration, and what was printed for it. Pure.

A preset says nothing of seeds, of how large it is run, or of where.
Source: docs/methods/experiments.md#experiments-of-the-papers
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from unstale.config.settings import Settings

Paper = Literal["FedHist", "WKAFL", "gradient inversion", "FedAR"]
Labels = Mapping[str, str]
"""Of a cell, by axis: `{"data": "CIFAR-10", "beta": "0.3", "N/K": "100", "method": "FedHist"}`."""


def nothing() -> Mapping[str, Any]:
    """A mapping that is empty and stays so."""
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
        """Whether print says no more than that it is above or below."""
        return self.text.startswith(("<", ">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a setting is from that every cell has, or that cells have by an axis.

    key: of the settings, or words where it is no setting of its own, such as `N`. value: as people write it. tag:
    `paper` where it is published; else it is ours to say: `R:` and a name for released code, `[M]` for what follows
    from what is published, `[P]` for what we propose. why: a sentence, where there is more to say.
    """

    key: str
    value: str
    tag: str
    why: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether the paper does not say it."""
        return self.tag != "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration of a preset.

    labels: where it stands. settings: complete but for seed, data.cache, device and threads, which are the caller's.
    measurement: how it is measured, a name in `measurements.MEASUREMENTS`. options: of that. scenario: text of a
    scenario file, for what no ready one says; None leaves settings.scenario as it is. in_rounds: what else counts
    rounds, and shrinks with them: keys of options and of settings (`policy.settings.stage_rounds`,
    `training.schedule.period`). in_iterations: what counts an inversion's iterations, as
    `compensator.settings.iterations` does. published: by measure.
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
        """`data=CIFAR-10 beta=0.3 method=FedHist`: unique in its preset, and what --cells chooses by."""
        return " ".join(f"{axis}={value}" for axis, value in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure: one line for each value of `line`, one panel for each of the other axes' values.

    shows: `accuracy`, `loss`, `class accuracy 5`, `training loss`, ... as `figures.SHOWS` has them. target: a level
    that is drawn too.
    """

    title: str
    shows: str
    line: str
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published table or figure.

    name: `fh-t2`. item: as the paper numbers it. data: what it needs, names of `unstale data list`. measures: what its
    table shows, names in `measures.MEASURES`. rows, columns: axes of the table. method: the axis whose values are
    ranked against each other. sources: of its settings. missing: what is published there and is not computed here, and
    why.
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

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        assert len(set(names)) == len(names), f"{self.name}: two cells are called alike"
        assert {axis for cell in self.cells for axis in cell.labels} <= {*self.rows, *self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of a paper that a table can settle.

    text: what is claimed, in our words, with the numbers that were printed. measure: that it is about. better, worse:
    labels that choose cells, compared where all labels are alike but those that `worse` names and, if `better` names
    it, the preset's method; with `worse` empty and no method in `better`, but those of `better`. at_least: how much
    better on average, in the measure's unit, or times with `as_ratio`. each: in every comparison by at_least, not on
    average. level: what each cell that `better` chooses is as good as, and none that `worse` chooses, in the measure's
    unit; with it, cells are not compared with each other, and an empty `better` or `worse` chooses none. without:
    labels of cells that are not compared, such as a method that is not of the paper. Where a measure is better when it
    is smaller (rounds to a target), better is smaller.
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
