"""A small search over unpublished settings: candidates and cells. Pure.

Every candidate is a cell of a preset with other values at some keys, measured on a part of its training examples; the
test set is not used.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

import yaml

from unstale.config.keys import open_section
from unstale.config.load import Given, load
from unstale.config.settings import Settings
from unstale.config.write import as_yaml
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale_papers.jobs import Job, values
from unstale_papers.preset import Cell, Preset
from unstale_papers.scale import Scale

CANDIDATES_MAX = 1000  # of more, some are drawn
LOGARITHMIC_FROM = 10  # high over low end, from which a range is drawn logarithmically
DIGITS = 3  # significant digits of drawn values, so that printed and computed values are equal

OPTION = "--over"
EXAMPLE = "such as training.learning_rate=0.003,0.01,0.03"

Candidate = Mapping[str, Any]
"""JSON values by key."""

_SAID_ELSEWHERE = {
    "seed": "--seeds",
    "device": "--device",
    "data.cache": "--cache",
    "data.path": "--data",
    "data.validation": "--validation",
}
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # YAML reads one without a point as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers to draw from. is_whole: integers, including both ends."""

    low: float
    high: float
    is_whole: bool

    @property
    def is_logarithmic(self) -> bool:
        """Whether equal factors, and not equal differences, are equally likely."""
        return self.low > 0 and self.high >= LOGARITHMIC_FROM * self.low

    def at(self, place: float) -> float:
        """The number at a place from 0 to 1, rounded."""
        if self.is_logarithmic:
            exact: float = self.low * (self.high / self.low) ** place
            found = round(exact) if self.is_whole else exact
        elif self.is_whole:
            found = int(self.low + place * (self.high - self.low + 1))  # the ends are as likely as other numbers
        else:
            found = self.low + place * (self.high - self.low)
        rounded = found if self.is_whole else float(f"{found:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    def __str__(self) -> str:
        how = "every factor as likely as another" if self.is_logarithmic else "uniform"
        return f"{'whole numbers ' * self.is_whole}from {spelled(self.low)} to {spelled(self.high)}, {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The searched values or range of a key."""

    key: str
    values: tuple[Any, ...] = ()
    range: Range | None = None

    def drawn(self, seed: int, number: int) -> Any:
        """The value of one draw. It depends only on key, range or values, and these two."""
        word = int.from_bytes(sha256(self.key.encode()).digest()[:4], "big")
        rng = stream(seed, Stream.SEARCH, number, word)
        if self.range is not None:
            return self.range.at(rng.random())
        return self.values[rng.integers(len(self.values))]

    def __str__(self) -> str:
        given = ", ".join(map(spelled, self.values)) if self.range is None else str(self.range)
        return f"{self.key}: {given}"


def spelled(value: Any) -> str:
    """A value as users write it."""
    return value if isinstance(value, str) else repr(value) if type(value) in (int, float) else as_yaml(value)


def named(candidate: Candidate) -> str:
    """`training.learning_rate 0.01, policy.settings.alpha 0.1`."""
    return ", ".join(f"{key} {spelled(value)}" for key, value in candidate.items())


# --- candidates ---


def overs(texts: Sequence[str]) -> tuple[Over, ...]:
    """Parse `KEY=VALUE,VALUE` and `KEY=LOW..HIGH`, each value checked as an option. Raises UserError."""
    found: dict[str, Over] = {}
    for text in texts:
        one = _over(text)
        if one.key in found:
            raise UserError(f"{OPTION} has {one.key} twice, expected all of its values in one list")
        found[one.key] = one
    return tuple(found.values())


def _over(text: str) -> Over:
    key, sign, given = text.partition("=")
    if not sign or not given.strip():
        raise UserError(f"{OPTION} is {text!r}, expected KEY=VALUE,VALUE or KEY=LOW..HIGH, {EXAMPLE}")
    if key in _SAID_ELSEWHERE:
        raise UserError(f"{OPTION} has {key}, which {_SAID_ELSEWHERE[key]} says; leave it out")
    ends = re.fullmatch(r"([^,]+?)\.\.([^,]+)", given)
    if ends is not None:
        return Over(key=key, range=_range(key, given, *(_value(key, end.strip()) for end in ends.groups())))
    every = [_value(key, one) for one in _split(key, given)]
    return Over(key=key, values=tuple(_once(every)))


def _range(key: str, given: str, low: Any, high: Any) -> Range:
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise UserError(f"{OPTION}: {key} is {given!r}, expected numbers at both ends, or a list of values")
    if not low < high:
        raise UserError(f"{OPTION}: {key} is {given!r}, expected the lower end first")
    return Range(low=low, high=high, is_whole=isinstance(low, int) and isinstance(high, int))


def _split(key: str, given: str) -> list[str]:
    """The values of a list as written; a comma inside brackets does not separate."""
    listed = f"[{given}]"
    try:
        root = yaml.compose(listed, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        raise UserError(f"{OPTION}: {key} is {given!r}, expected VALUE,VALUE, {EXAMPLE}") from None
    nodes = root.value if root is not None else ()
    return [listed[node.start_mark.index : node.end_mark.index].strip() for node in nodes]


def _value(key: str, text: str, option: str = OPTION) -> Any:
    """The parsed value of a key. Raises UserError as for an option."""
    found: Any = load(options={key: Given(value=text, origin=option)}).model_dump(mode="json")
    inside = open_section(key)
    path = key.split(".") if inside is None else [*inside.split("."), key.removeprefix(f"{inside}.")]
    for part in path:
        found = found[part]
    is_number = inside is not None and isinstance(found, str) and _EXPONENT.fullmatch(found)
    return float(found) if is_number else found


def _once(found: Iterable[Any]) -> list[Any]:
    """Distinct values in order. They may be mappings, which a set cannot contain."""
    once: list[Any] = []
    for one in found:
        if one not in once:
            once.append(one)
    return once


def candidates(over: Sequence[Over], *, draws: int | None = None, seed: int = 0) -> list[Candidate]:
    """Every combination, or a random draw; each once.

    draws: number of draws; None for all combinations. More draws extend fewer, and the value of a key depends neither
    on other keys nor on their order. seed: of the search, not of runs. Raises UserError.
    """
    if draws is None:
        for one in over:
            if one.range is not None:
                raise UserError(
                    f"{OPTION}: {one.key} is a range, expected --random NUMBER with it, or a list of values"
                )
        count = prod(len(one.values) for one in over)
        if count > CANDIDATES_MAX:
            raise UserError(
                f"{OPTION} comes to {count:,} candidates, expected at most {CANDIDATES_MAX:,}; leave values out, or "
                "have some of them drawn with --random NUMBER"
            )
        every: Iterable[tuple[Any, ...]] = product(*(one.values for one in over))
    else:
        every = (tuple(one.drawn(seed, number) for one in over) for number in range(draws))
    found: list[Candidate] = [dict(zip((one.key for one in over), them, strict=True)) for them in _once(every)]
    if len(found) < 2:
        raise UserError(f"{OPTION} comes to one candidate, expected two at least to choose from, {EXAMPLE}")
    return found


# --- trials ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate in one cell. of: the preset's cell. cell: with the candidate's values."""

    of: Cell
    candidate: Candidate
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """All candidates in all searched cells of a preset. keys: of the candidates."""

    preset: Preset
    keys: tuple[str, ...]
    candidates: Sequence[Candidate]
    validation: float
    trials: Sequence[Trial] = field(repr=False)

    @property
    def cells(self) -> list[Cell]:
        """The preset's own cells, each once."""
        return list({trial.of.name: trial.of for trial in self.trials}.values())

    @property
    def planned(self) -> Preset:
        """The preset with a cell per trial, with the candidate's values as further labels."""
        return replace(
            self.preset,
            cells=tuple(trial.cell for trial in self.trials),
            rows=(*self.preset.rows, *self.keys),
            curves=(),
            claims=(),
        )

    @property
    def untouched(self) -> Preset:
        """The preset with the searched cells, measured on the same examples, without a candidate."""
        cells = tuple(_measured_on(cell, {}, self.validation) for cell in self.cells)
        return replace(self.preset, cells=cells, curves=(), claims=())


def search(preset: Preset, cells: Iterable[Cell], tried: Sequence[Candidate], *, validation: float) -> Search:
    """A search over candidates with equal keys. validation: share of the training set to measure on.

    Raises UserError for a value that does not fit a cell.
    """
    _value("data.validation", f"{validation:g}", "--validation")
    return Search(
        preset=preset,
        keys=tuple(tried[0]),
        candidates=tried,
        validation=validation,
        trials=[
            Trial(of=cell, candidate=candidate, cell=_measured_on(cell, candidate, validation))
            for cell in cells
            for candidate in tried
        ],
    )


def _measured_on(cell: Cell, candidate: Candidate, validation: float) -> Cell:
    if cell.settings.data.variant.name is not None:
        raise UserError(
            f"{cell.name} has data that changes (data.variant), of which no part can be kept for validation; choose "
            "other cells with --cells"
        )
    labels = {key: spelled(value) for key, value in candidate.items()}
    return replace(cell, labels={**cell.labels, **labels}, settings=_settings(cell, candidate, validation))


def _settings(cell: Cell, candidate: Candidate, validation: float) -> Settings:
    """Settings parsed as options, so that errors have the same text."""
    given = {**values(cell.settings), **candidate, "data.validation": validation}
    try:
        return load(options={key: Given(value=_text(value), origin=OPTION) for key, value in given.items()})
    except UserError as error:  # an invalid combination; each key alone has been checked
        raise UserError(f"{cell.name} with {named(candidate)}: {error}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_yaml(value)


def check_different(found: Search, planned: Iterable[Job], scale: Scale) -> None:
    """Raise UserError for candidates with equal jobs in a cell: a key in which they differ has no effect.

    planned: jobs of `Search.planned`; one seed is enough.
    """
    digests = {job.cell: job.digest for job in planned}
    seen: dict[tuple[str, str], Candidate] = {}
    for trial in found.trials:
        other = seen.setdefault((trial.of.name, digests[trial.cell.name]), trial.candidate)
        if other is not trial.candidate:
            keys = [key for key in found.keys if trial.candidate[key] != other[key]]
            where = "" if scale.is_full else f" at {scale}"
            raise UserError(
                f"{OPTION}: {' and '.join(keys)} changes nothing of what {trial.of.name} computes{where}, as "
                f"{named({key: other[key] for key in keys})} and {named({key: trial.candidate[key] for key in keys})} "
                "come to the same; leave it out"
            )
