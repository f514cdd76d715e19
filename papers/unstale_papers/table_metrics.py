"""The measures of a record in tables. Pure.

A measure is None for a record that is too short, or without a finite number.
Source: docs/methods/measures.md#measures
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from unstale.errors import UserError, unknown_name
from unstale.training.measured import MainMetric
from unstale_papers import metric_functions
from unstale_papers.metric_functions import FEW_HEAVY, LAST, Pair
from unstale_papers.preset import nothing
from unstale_papers.record import Record
from unstale_papers.statistics import over_rounds
from unstale_papers.theory_metrics import THEORY, Better

TARGET_PERCENT = 40  # of FedHist's Table II
AFFECTED_CLASS = 5  # the class of the stale clients in the paper on gradient inversion

Of = Callable[[Record, Record | None], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a record.

    unit: displayed; with `%` its values are shares in [0, 1], else they are in the unit. digits: after the point, or
    `significant` ones. of: computes the number from a record and its reference of the same seed; may return None.
    reference: labels that change a cell to its reference, empty for none; `method` is the preset's method axis. of_all:
    computes the number over all seeds, where it is not a mean. counts_rounds: whether None means that the run ended
    first, so that the number exceeds its last version. is_ranked: whether it ranks methods; false for tests, and where
    another measure has the same order. what: a sentence, with its source.
    """

    name: str
    unit: str
    digits: int
    better: Better
    of: Of
    what: str
    reference: Mapping[str, str] = field(default_factory=nothing)
    of_all: Callable[[Sequence[Pair]], float | None] | None = None
    counts_rounds: bool = False
    is_ranked: bool = True
    significant: bool = False

    @property
    def heading(self) -> str:
        """`final accuracy, %`."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, value: float) -> str:
        """A value as a table shows it, without its unit."""
        shown = 100 * value if self.unit == "%" else value
        return f"{shown:.{self.digits}{'g' if self.significant else 'f'}}"

    def difference(self, value: float) -> str:
        """A difference of two values, with sign and unit; that of percentages is in points."""
        shown = self.text(abs(value))
        unit = "points" if self.unit == "%" else self.unit
        return f"{'-' if value < 0 else '+'}{shown}{' ' if unit else ''}{unit}"


def measure(name: str) -> Measure:
    """The measure of that name: one of `MEASURES`, or of a family. Raises UserError for an unknown name."""
    if name in MEASURES:
        return MEASURES[name]
    for pattern, make in _FAMILIES.items():
        match = re.fullmatch(pattern, name)
        if match:
            return make(match[1])
    raise unknown_name("measure", name, [*MEASURES, *FAMILIES])


def of_main(main: MainMetric) -> Measure:
    """The measure of a main metric at the end of a run."""
    if main.name == "accuracy":
        return MEASURES["final accuracy"]
    return _final(main.name, "higher" if main.higher_is_better else "lower")


def _final(name: str, better: Better) -> Measure:
    """The measure of a main metric that is not the accuracy."""
    return Measure(
        name=f"final {name}",
        unit="",
        digits=4,
        significant=True,
        better=better,
        of=metric_functions.final_of_main,
        what=f"Mean of {name} over the last {LAST} evaluations or all if fewer (docs/methods/measures.md#main-metric).",
    )


# Families: measures with a number or a name in theirs


def _class_of(text: str) -> Measure:
    label = int(text)
    return Measure(
        name=f"final accuracy of class {label}",
        unit="%",
        digits=2,
        better="higher",
        of=partial(metric_functions.final_of_class, label),
        what=f"Share of the test examples of class {label} that are classified correctly: mean of the last {LAST} "
        "evaluations (docs/methods/measures.md#accuracy).",
    )


def _matched_of(text: str) -> Measure:
    label = int(text)
    return Measure(
        name=f"time to match of class {label}",
        unit="rounds",
        digits=0,
        better="lower",
        of=partial(metric_functions.time_to_match, label),
        reference={"method": "direct"},
        counts_rounds=True,
        what=f"First round at which the accuracy of class {label}, averaged over {LAST} rounds, is what direct "
        "aggregation has at its end. Direct's own number is no measurement: it is its last round by definition, in "
        "print as here, which makes whatever is held against it look faster "
        "(docs/methods/measures.md#time-to-match, our reading).",
    )


def _passage_of(text: str) -> Measure:
    label = int(text)
    return Measure(
        name=f"first passage of class {label}",
        unit="rounds",
        digits=0,
        better="lower",
        of=partial(metric_functions.first_passage, label),
        reference={"method": "direct"},
        counts_rounds=True,
        what=f"First round at which the accuracy of class {label}, averaged over {LAST} rounds, is what direct "
        "aggregation has at its end, of every method alike, direct too. Not of the paper: the time to match without "
        "its exception (docs/methods/measures.md#time-to-match).",
    )


def _target(name: str, percent: str) -> float:
    if not 0 < float(percent) <= 100:
        raise UserError(f"the measure {name!r} has a target of {percent} %, expected more than 0 and at most 100")
    return float(percent) / 100


def _rounds_to(percent: str) -> Measure:
    name = f"rounds to {percent} %"
    return Measure(
        name=name,
        unit="rounds",
        digits=0,
        better="lower",
        of=partial(metric_functions.rounds_to, _target(name, percent)),
        counts_rounds=True,
        what=f"First evaluated version with a test accuracy of {percent} % "
        "(docs/methods/measures.md#rounds-to-a-target).",
    )


def _averaged_rounds_to(percent: str) -> Measure:
    name = f"rounds to {percent} %, averaged"
    return Measure(
        name=name,
        unit="rounds",
        digits=0,
        better="lower",
        of=partial(metric_functions.averaged_rounds_to, _target(name, percent)),
        counts_rounds=True,
        what=f"First evaluated version at which the mean of the last {LAST} evaluations is {percent} %. Not of the "
        "papers: single evaluations swing, so that the first that has it comes early by luck "
        "(docs/methods/measures.md#rounds-to-a-target).",
    )


def _speedup_to(percent: str) -> Measure:
    name = f"speedup to {percent} %"
    return Measure(
        name=name,
        unit="times",
        digits=1,
        better="higher",
        of=partial(metric_functions.speedup, _target(name, percent)),
        reference={"method": "FedAvg"},
        is_ranked=False,
        what=f"How many times the rounds to {percent} % FedAvg needs (docs/methods/measures.md#rounds-to-a-target).",
    )


def _p_against(method: str) -> Measure:
    return Measure(
        name=f"p against {method}",
        unit="",
        digits=3,
        significant=True,
        better="lower",
        of=lambda record, reference: metric_functions.p_of(over_rounds, [(record, reference)]),
        of_all=partial(metric_functions.p_of, over_rounds),
        is_ranked=False,
        reference={"method": method},
        what=f"Paired t-test of the test accuracies against those of {method}, over all evaluated rounds and seeds; "
        "two-sided, so that it does not say who is ahead; rounds are autocorrelated, so it is no evidence "
        "(docs/methods/measures.md#paired-t-test).",
    )


def _p_over_seeds(method: str) -> Measure:
    return Measure(
        name=f"p over seeds against {method}",
        unit="",
        digits=3,
        significant=True,
        better="lower",
        of=lambda _record, _reference: None,
        of_all=partial(metric_functions.p_of, metric_functions.over_seeds_of_finals),
        is_ranked=False,
        reference={"method": method},
        what=f"Paired t-test of the final accuracies against those of {method}, over seeds; two-sided, so that it does "
        "not say who is ahead (docs/methods/measures.md#paired-t-test).",
    )


def _ahead_of(method: str) -> Measure:
    return Measure(
        name=f"ahead of {method}",
        unit="points",
        digits=2,
        better="higher",
        of=metric_functions.ahead,
        reference={"method": method},
        is_ranked=False,
        what=f"Final accuracy less that of {method} with the same seed: below 0 where {method} is ahead "
        "(docs/methods/measures.md#paired-t-test).",
    )


_FAMILIES: Mapping[str, Callable[[str], Measure]] = {
    r"final accuracy of class (\d+)": _class_of,
    r"time to match of class (\d+)": _matched_of,
    r"first passage of class (\d+)": _passage_of,
    r"rounds to (\d+(?:\.\d+)?) %": _rounds_to,
    r"rounds to (\d+(?:\.\d+)?) %, averaged": _averaged_rounds_to,
    r"speedup to (\d+(?:\.\d+)?) %": _speedup_to,
    r"p against (\S.*)": _p_against,
    r"p over seeds against (\S.*)": _p_over_seeds,
    r"ahead of (\S.*)": _ahead_of,
}

FAMILIES = (
    "final accuracy of class C",
    "time to match of class C",
    "first passage of class C",
    "rounds to P %",
    "rounds to P %, averaged",
    "speedup to P %",
    "p against METHOD",
    "p over seeds against METHOD",
    "ahead of METHOD",
)
"""Names of families, for readers."""


# All others


def _clients(name: str, figure: str, better: Better, what: str) -> Measure:
    """A measure in percentage points, or for a variance in their squares."""
    return Measure(
        name=f"client accuracy {name}",
        unit="points²" if figure == "variance" else "points",
        digits=1,
        better=better,
        of=partial(metric_functions.of_clients, figure, 1e4 if figure == "variance" else 1e2),
        what=f"Over the last model's accuracies on each client's own test examples: {what} "
        "(docs/methods/measures.md#fairness-over-clients).",
    )


def _compensation(name: str, what: str, place: int, *, unchanged: bool) -> Measure:
    how = "1 - cosine" if place == 3 else "L1"
    return Measure(
        name=f"{name} (cosine)" if place == 3 else name,
        unit="",
        digits=3,
        significant=True,
        better="lower",
        of=partial(metric_functions.compensation_error, place, unchanged),
        what=f"How far {what} is from the update that the client would have sent: {how}, over all parameters, mean "
        "over the stale clients of a round and over rounds (docs/methods/measures.md#compensation-errors).",
    )


def _simple() -> Iterable[Measure]:
    yield Measure(
        name="final accuracy",
        unit="%",
        digits=2,
        better="higher",
        of=metric_functions.final,
        what=f"Share of the test set that is classified correctly: mean of the last {LAST} evaluations, or of as "
        "many as there are (docs/methods/measures.md#accuracy).",
    )
    yield Measure(
        name="best accuracy",
        unit="%",
        digits=2,
        better="higher",
        of=metric_functions.best,
        what="Best test accuracy over all evaluations (docs/methods/measures.md#accuracy).",
    )
    yield Measure(
        name="accuracy of the last fifth",
        unit="%",
        digits=2,
        better="higher",
        of=metric_functions.of_last_fifth,
        what="Share of the test set that is classified correctly: mean of the evaluations in the last fifth of the "
        "rounds. Not of the papers: less moved by chance than the last ten (docs/methods/measures.md#accuracy).",
    )
    for name, base in (("stability", None), ("stability (base 10)", 10.0)):
        yield Measure(
            name=name,
            unit="",
            digits=4,
            better="lower",
            of=partial(metric_functions.stability, base),
            what=f"Standard deviation (with n) of the {'decimal' if base else 'natural'} logarithm of the last {LAST} "
            "accuracies; which logarithm is not published "
            "(docs/methods/measures.md#training-stability). "
            "Left out where they are chance, to 2 "
            "percentage points: a dead model is no stable one.",
        )
    yield Measure(
        name="average staleness",
        unit="rounds",
        digits=2,
        better="lower",
        of=metric_functions.average_staleness,
        what="Staleness of a round's updates, weighted as they were aggregated, mean over rounds "
        "(docs/methods/measures.md#average-staleness).",
    )
    yield Measure(
        name="aggregated gradients",
        unit="updates",
        digits=2,
        better="higher",
        of=metric_functions.aggregated,
        what="Updates of a round that weigh at least a tenth of the heaviest, mean over rounds; the tenth is our "
        "reading (docs/methods/measures.md#average-staleness).",
    )
    yield Measure(
        name="few heavy gradients",
        unit="%",
        digits=1,
        better="higher",
        of=metric_functions.few_heavy,
        what=f"Share of the rounds in which at most {FEW_HEAVY} updates weigh more than 0.1 "
        "(docs/methods/measures.md#average-staleness).",
    )
    yield Measure(
        name="training loss",
        unit="nats",
        digits=3,
        better="lower",
        of=metric_functions.training_loss,
        what="Mean of what a round's clients reported, over the last tenth of the rounds "
        "(docs/methods/measures.md#loss).",
    )
    yield Measure(
        name="training loss of all",
        unit="nats",
        digits=3,
        better="lower",
        of=metric_functions.loss_of_all,
        what="Over all clients' training examples, when it was last measured (docs/methods/measures.md#loss).",
    )


def _found(name: str, unit: str, digits: int, better: Better, what: str, heading: str) -> Measure:
    """A result of a measurement other than a run, in `Record.found` under the measure's name.

    A number without a unit has significant digits. heading: of docs/methods/measures.md.
    """
    return Measure(
        name=name,
        unit=unit,
        digits=digits,
        significant=not unit,
        better=better,
        of=partial(metric_functions.found, name),
        what=f"{what} (docs/methods/measures.md#{heading}).",
    )


def _of_other_measurements() -> Iterable[Measure]:
    yield _found("inversion seconds", "s", 1, "lower", "Seconds that inverting one update takes", "inversion")
    yield _found("inversion loss", "", 3, "lower", "Disparity that an inversion ends with, an L1", "inversion")
    yield _found("iterations saved", "%", 1, "higher", "Share of the iterations that a warm start saves", "inversion")
    alike = "Correlation of the loss around the model with that over the client's own examples"
    yield _found("likeness of loss surface", "", 3, "higher", alike, "inversion")
    yield _found("loss at the model", "nats", 3, "lower", "Loss of the model over the cell's examples", "inversion")
    for rounds in (20, 40, 60):
        late = f"How far what is made of an update {rounds} rounds late is from the true one"
        yield _found(f"L1 error at {rounds}", "", 3, "lower", f"{late}: L1 over all parameters", "compensation-errors")
        yield _found(f"cosine error at {rounds}", "", 3, "lower", f"{late}: 1 - cosine", "compensation-errors")
    for pool in ("own", "others'"):
        nearest = f"of reconstructed examples to the most alike of {pool} real ones"
        yield _found(f"LPIPS to {pool} examples", "", 3, "lower", f"LPIPS {nearest}", "inversion")
        yield _found(f"SSIM to {pool} examples", "", 3, "higher", f"SSIM {nearest}", "inversion")
        yield _found(f"PSNR to {pool} examples", "dB", 1, "higher", f"PSNR {nearest}", "inversion")
    yield _found(
        "Shapley share",
        "%",
        1,
        "higher",
        "Share of client 0 in the values of all clients, without their signs",
        "shapley-share",
    )
    yield _found("Shapley value", "%", 2, "higher", "What client 0's last update adds to the accuracy", "shapley-share")
    yield from (replace(_found(*row[:5], "theory"), is_ranked=row[5]) for row in THEORY)


def _all() -> Iterable[Measure]:
    yield from _simple()
    yield from _of_other_measurements()
    yield from (_class_of(str(label)) for label in range(10))
    yield from (_final(name, "lower") for name in ("mae", "perplexity"))
    yield _rounds_to(str(TARGET_PERCENT))
    yield from (_clients(*one) for one in _OVER_CLIENTS)
    for place in (2, 3):
        yield _compensation("E1", "what was made of a stale update", place, unchanged=False)
        yield _compensation("E2", "the stale update itself", place, unchanged=True)


_OVER_CLIENTS: tuple[tuple[str, str, Better, str], ...] = (
    ("mean", "mean", "higher", "their mean"),
    ("std", "std", "lower", "their standard deviation, with n - 1"),
    ("variance", "variance", "lower", "their variance, with n"),
    ("worst tenth", "worst_tenth", "higher", "mean of the lowest tenth"),
    ("worst tenth std", "worst_tenth_std", "lower", "standard deviation of the lowest tenth, with n - 1"),
    ("best tenth", "best_tenth", "higher", "mean of the highest tenth"),
    ("best tenth std", "best_tenth_std", "lower", "standard deviation of the highest tenth, with n - 1"),
)

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {one.name: one for one in _all()}
    | {
        "speedup": replace(_speedup_to(str(TARGET_PERCENT)), name="speedup"),
        "time to match": replace(_matched_of(str(AFFECTED_CLASS)), name="time to match"),
    }
)
"""Measures with fixed names. `speedup` is to 40 %, and `time to match` of class 5."""
