"""Wang and Gao's tables and figures: here the figures of whole runs, gi-f1, gi-f8, gi-f9, gi-f11, gi-f12 and gi-f14.

The tables of runs are in `inversion_tables`, measurements of one client or one model in `inversion_parts`. Cells that
presets share come from one function, so their settings are equal.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/experiments.md#gradient-inversion-experiments
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from unstale_papers.preset import Claim, Curve, Preset, Source
from unstale_papers.presets import inversion_parts, inversion_tables
from unstale_papers.presets.inversion_setup import (
    ALL,
    ALPHA,
    BASELINES,
    CIFAR_10,
    CLASS_5,
    CNN3,
    COMPARED,
    FIRST_ORDER,
    INVERSION,
    MNIST,
    ONE_CLASS,
    OURS,
    PASSAGE,
    RELEASED,
    ROUNDS,
    SETUP,
    SHARES,
    SINGLE_CLASS,
    STALE_40,
    TIME,
    VARIANT,
    VARIANT_SOURCES,
    WEIGHTED,
    Task,
    cell,
)


def gi_f1() -> Preset:
    """Fig. 1: the effect of staleness on a class that only late clients have."""
    order = (
        ("unstale", "direct", "Staleness costs accuracy on the class that only late clients hold."),
        ("direct", "weighted", "Weighing stale updates less makes it worse."),
    )
    return Preset(
        name="gi-f1",
        paper="gradient inversion",
        item="Fig. 1",
        title="A class that only late clients hold, under direct and weighted aggregation",
        cells=tuple(cell({"method": method}, SINGLE_CLASS, method) for method in ("unstale", "direct", "weighted")),
        measures=(CLASS_5, "final accuracy"),
        rows=("method",),
        columns=(),
        sources=(ONE_CLASS, CNN3, ROUNDS, *SETUP, WEIGHTED),
        curves=(Curve(title="Accuracy on class 5 (Fig. 1)", shows="class accuracy 5", line="method"),),
        claims=tuple(
            Claim(text=text, measure=CLASS_5, better={"method": better}, worse={"method": worse})
            for better, worse, text in order
        ),
        missing=("The paper prints no number for this figure.",),
    )


def gi_f8() -> Preset:
    """Fig. 8: errors of estimates and of stale updates over the rounds."""
    return Preset(
        name="gi-f8",
        paper="gradient inversion",
        item="Fig. 8",
        title="Errors of estimates (E1) and of stale updates (E2) over the rounds",
        cells=(
            cell({"method": "GI"}, MNIST, "GI", changed={"switch": "never"}),
            cell({"method": "GI (ours)"}, MNIST, "GI (ours)", changed={"switch": "never"}),
        ),
        measures=("E1", "E2", "E1 (cosine)", "E2 (cosine)", CLASS_5),
        rows=("method",),
        columns=(),
        sources=(
            Source(
                key="compensator.settings.switch",
                value="never",
                tag="[P]",
                why="So that both errors can be seen to the end.",
            ),
            *(source for source in INVERSION if source.key != "compensator.settings.switch"),
            OURS,
            ALPHA,
            STALE_40,
            ROUNDS,
            *SHARES,
            *SETUP,
        ),
        curves=(
            Curve(title="Errors of estimates (Fig. 8)", shows="E1", line="method"),
            Curve(title="Errors of stale updates (Fig. 8)", shows="E2", line="method"),
        ),
        missing=(
            "That E1 is over E2 first at t = 155: read it from the figure.",
            "The paper's remark on Fig. 8 that E2 is always over E1 in the end is the wrong way round: it is why it "
            "switches.",
        ),
    )


SWITCHES: Mapping[str, Mapping[str, object]] = {
    "by later updates": {"switch": "matched"},
    "by true updates": {"switch": "oracle"},
    "155": {"switch": "never", "last_round": 155},
    "175": {"switch": "never", "last_round": 175},
    "195": {"switch": "never", "last_round": 195},
    "235": {"switch": "never", "last_round": 235},
    "never": {"switch": "never"},
}
"""Cells of gi-f9, by the end of inversion: the paper's rule, the rule with true updates, and fixed rounds."""


def gi_f9() -> Preset:
    """Fig. 9: the effect of the round of the switch."""
    return Preset(
        name="gi-f9",
        paper="gradient inversion",
        item="Fig. 9",
        title="When inversion ends, and the accuracy on class 5",
        cells=tuple(cell({"switch": switch}, MNIST, "GI", changed=changed) for switch, changed in SWITCHES.items()),
        measures=(CLASS_5, "final accuracy"),
        rows=("switch",),
        columns=(),
        sources=(
            Source(
                key="switch",
                value="at 155, 175, 195 and 235",
                tag="[P]",
                why="The figure has several; 155 is where E1 is over E2 first, the others are 20, 40 and 80 rounds "
                "late. At these rounds inversion ends at once, by later or true updates over 20 rounds.",
            ),
            *(source for source in INVERSION if source.key != "compensator.settings.switch"),
            ALPHA,
            STALE_40,
            ROUNDS,
            *SHARES,
            *SETUP,
        ),
        method="switch",
        curves=(Curve(title="Accuracy on class 5 (Fig. 9)", shows="class accuracy 5", line="switch"),),
        missing=(
            "That a late switch changes little: no order of the cells would say so. The range of the accuracies does.",
            RELEASED,
        ),
    )


def _five_strategies(
    *, name: str, item: str, what: str, task: Task, label: int, less_time: float, before: int
) -> Preset:
    """less_time: factor in rounds against direct. before: the round by which that holds."""
    measure, time = f"final accuracy of class {label}", f"time to match of class {label}"
    passage = f"first passage of class {label}"
    share = 100 * (1 - 1 / less_time)
    claims = (
        (
            "unstale",
            "direct",
            f"Direct aggregation is less accurate on class {label} than without staleness (by up to 7.5 % in the text, "
            "of which setting it does not say).",
        ),
        ("direct", "weighted", "Weighted aggregation is less accurate still (by up to 20 % in the text)."),
        ("GI", "direct", "Gradient inversion is more accurate than direct aggregation."),
        ("GI", "first order", "Gradient inversion is more accurate than first-order compensation."),
    )
    return Preset(
        name=name,
        paper="gradient inversion",
        item=item,
        title=f"A class that late clients hold most of, {what}",
        cells=tuple(cell({"method": method}, task, method) for method in ALL),
        measures=(measure, time, passage, "final accuracy"),
        rows=("method",),
        columns=(),
        sources=(*INVERSION, OURS, *BASELINES, ALPHA, *SHARES, *SETUP),
        curves=(Curve(title=f"Accuracy on class {label} ({item})", shows=f"class accuracy {label}", line="method"),),
        claims=(
            *(
                Claim(text=text, measure=measure, better={"method": better}, worse={"method": worse})
                for better, worse, text in claims
            ),
            Claim(
                text=f"Gradient inversion is as accurate as direct aggregation ends in {share:.3g} % less time.",
                measure=time,
                better={"method": "GI"},
                worse={"method": "direct"},
                at_least=less_time,
                as_ratio=True,
            ),
            Claim(
                text="Gradient inversion is as accurate as direct aggregation ends before first-order compensation is.",
                measure=time,
                better={"method": "GI"},
                worse={"method": "first order"},
            ),
        ),
        missing=(
            "The paper prints no accuracy for this figure.",
            f"That inversion ends before epoch {before}: no measure of the table says so.",
            RELEASED,
        ),
    )


def gi_f11() -> Preset:
    """Fig. 11: all strategies on MNIST."""
    made = _five_strategies(
        name="gi-f11", item="Fig. 11", what="MNIST", task=MNIST, label=5, less_time=800 / 580, before=400
    )
    return replace(made, sources=(*made.sources, ROUNDS))


def gi_f12() -> Preset:
    """Fig. 12: all strategies on CIFAR-10."""
    made = _five_strategies(
        name="gi-f12", item="Fig. 12", what="CIFAR-10", task=CIFAR_10, label=2, less_time=1 / 0.65, before=1000
    )
    unsaid = (
        Source(key="rounds", value="1500", tag="[P]", why="Not stated; the text mentions epoch 1000."),
        Source(
            key="model.name",
            value="resnet8 with GroupNorm of 2 groups",
            tag="[M]",
            why="The paper says ResNet-8, which its released code does not hold. BatchNorm's statistics are not "
            "parameters, so that an update does not tell them.",
        ),
    )
    return replace(made, sources=(*unsaid, *made.sources))


def gi_f14() -> Preset:
    """Fig. 14: curves on variant data."""
    return Preset(
        name="gi-f14",
        paper="gradient inversion",
        item="Fig. 14",
        title="Accuracy on class 5 while MNIST gives way to SVHN",
        cells=tuple(cell({"method": method}, VARIANT, method) for method in ("unstale", *COMPARED)),
        measures=(CLASS_5, TIME, PASSAGE, "final accuracy"),
        rows=("method",),
        columns=(),
        sources=(
            Source(key="data.variant.rate", value="1/2", tag="[P]", why="Not stated for the figure."),
            STALE_40,
            *VARIANT_SOURCES,
            *INVERSION,
            OURS,
            FIRST_ORDER,
            ROUNDS,
            *SHARES,
            *SETUP,
        ),
        curves=(Curve(title="Accuracy on class 5 (Fig. 14)", shows="class accuracy 5", line="method"),),
        claims=(
            Claim(
                text="Gradient inversion is 20 points more accurate than direct aggregation.",
                measure=CLASS_5,
                better={"method": "GI"},
                worse={"method": "direct"},
                at_least=0.2,
            ),
            Claim(
                text="Gradient inversion is 20 points more accurate than first-order compensation.",
                measure=CLASS_5,
                better={"method": "GI"},
                worse={"method": "first order"},
                at_least=0.2,
            ),
            *(
                Claim(text=f"{what} ends below 40 %.", measure=CLASS_5, worse={"method": method}, level=0.4)
                for what, method in (("Direct aggregation", "direct"), ("First-order compensation", "first order"))
            ),
        ),
        missing=(
            "That inversion comes close to no staleness: how close is not said.",
            "Below 40 % does not go with Table 5, whose direct aggregation ends at 40.7 %.",
            RELEASED,
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    "gi-f1": gi_f1,
    **inversion_parts.PRESETS,
    "gi-f8": gi_f8,
    "gi-f9": gi_f9,
    "gi-f11": gi_f11,
    "gi-f12": gi_f12,
    "gi-f14": gi_f14,
    **inversion_tables.PRESETS,
}
