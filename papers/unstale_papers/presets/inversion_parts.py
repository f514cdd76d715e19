"""Wang and Gao's tables and figures of one update, one client or one model.

gi-t1, gi-t2, gi-f2, gi-f4, gi-f5, gi-f6 and gi-f7. In each a run without staleness of `rounds` rounds produces the
models.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/experiments.md#gradient-inversion-experiments
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unstale_papers import printed
from unstale_papers.preset import Cell, Claim, Curve, Number, Preset, Source
from unstale_papers.presets.inversion_setup import (
    ALPHA,
    CNN3,
    FIRST_ORDER,
    INVERSION,
    MNIST,
    ONE_CLASS,
    OURS,
    SETUP,
    SHARES,
    SINGLE_CLASS,
    Task,
    cell,
)

SECONDS, LOSS = "inversion seconds", "inversion loss"

SIZES = {"1/64": 1 / 64, "1/16": 1 / 16, "1/4": 1 / 4, "1/2": 1 / 2, "2": 2.0, "10": 10.0}
_BASE_ROUNDS = 60  # 100 - 40: a model that is 40 rounds old in round 100

ONE_CLIENT = (
    Source(
        key="rounds",
        value=f"{_BASE_ROUNDS}, of the run whose last model the update is made from",
        tag="[P]",
        why="How far the model is trained is not stated.",
    ),
    Source(
        key="client",
        value="of the ten that hold the most of the affected class, the one with the most examples",
        tag="[P]",
        why="Not stated.",
    ),
)
WITHOUT_A_RUN = tuple(
    source
    for source in INVERSION
    if source.key not in ("warm start", "compensator.settings.switch")
    if source.key != "compensator.settings.smooth_rounds"
)
"""Sources of the settings of a single inversion."""


# --- cost of inversion ---


def _costs(number: str, data: str, task: Task) -> Preset:
    found: dict[str, dict[str, Number]] = {}
    for (table, size), (measure,), text in printed.load("inversion").tables["costs"].cells():
        if table == number:
            found.setdefault(size, {})[measure] = Number(float(text), text)
    cells = tuple(
        cell(
            {"size": size},
            task,
            "GI",
            changed={"images_share": share},
            measurement="inversion cost",
            published=found[size],
        )
        for size, share in SIZES.items()
    )
    half = {"size": "1/2"}
    return Preset(
        name=f"gi-t{number}",
        paper="gradient inversion",
        item=f"Table {number}",
        title=f"What inverting one update costs by the number of examples, {data}",
        cells=cells,
        measures=(SECONDS, LOSS),
        rows=("size",),
        columns=(),
        sources=(
            Source(key="size", value="reconstructed examples for each that the client holds", tag="paper"),
            Source(
                key="size 10",
                value="4096 examples at most",
                tag="[P]",
                why="More are not reconstructed of one update here; a client holds up to 450.",
            ),
            *ONE_CLIENT,
            ALPHA,
            *(source for source in WITHOUT_A_RUN if source.key != "inverted examples"),
            *SHARES,
            *SETUP,
        ),
        method="size",
        curves=(Curve(title=f"Loss of the inversion (Table {number})", shows=LOSS, line="size"),),
        claims=(
            Claim(
                text="Too few examples leave a large loss: a sixty-fourth ten times that of a half.",
                measure=LOSS,
                better=half,
                worse={"size": "1/64"},
                at_least=10.0,
                as_ratio=True,
            ),
            Claim(
                text="More than a half costs time: 2 takes two and a half times as long.",
                measure=SECONDS,
                better=half,
                worse={"size": "2"},
                at_least=2.5,
                as_ratio=True,
            ),
        ),
        missing=("Seconds are of other hardware: their ratios can be compared, they cannot.",),
    )


def gi_t1() -> Preset:
    """Table 1: MNIST."""
    return _costs("1", "MNIST", replace(MNIST, rounds=_BASE_ROUNDS))


def gi_t2() -> Preset:
    """Table 2: CIFAR-10."""
    task = Task(data="cifar10", model="lenet_cifar", label=2, rounds=_BASE_ROUNDS)
    made = _costs("2", "CIFAR-10", task)
    model = Source(key="model.name", value="lenet_cifar", tag="[M]", why="LeNet in the text; elsewhere ResNet-8.")
    return replace(made, sources=(model, *made.sources))


# --- errors over staleness ---

_STALENESSES = tuple(range(0, 61, 10))
ERRORS = tuple(f"{kind} error at {rounds}" for rounds in (20, 40, 60) for kind in ("L1", "cosine"))
_ERROR_SOURCES = (
    Source(key="rounds", value="200", tag="[P]", why="Not stated: where in training the errors are taken."),
    Source(
        key="true update",
        value="the same task of the same client, its draws included, from the current model",
        tag="[M]",
    ),
    Source(key="errors", value="means over the clients that are late in Fig. 1", tag="[P]", why="Not stated."),
    Source(
        key="staleness",
        value="0 to 60 in steps of 10 rounds",
        tag="[P]",
        why="In ten rounds it is everybody's turn: the model of 10 or 20 rounds ago was made last by the same clients "
        "as the current one, and is more like it than that of 5 or 15.",
    ),
)


def _errors(task: Task, method: str) -> Cell:
    return cell({"method": method}, task, method, measurement="staleness errors", options={"staleness": _STALENESSES})


def gi_f2() -> Preset:
    """Fig. 2: the error of first-order compensation against staleness."""
    task = replace(SINGLE_CLASS, rounds=200)
    return Preset(
        name="gi-f2",
        paper="gradient inversion",
        item="Fig. 2",
        title="Errors of first-order compensation by staleness",
        cells=tuple(_errors(task, method) for method in ("direct", "first order")),
        measures=ERRORS,
        rows=("method",),
        columns=(),
        sources=(*_ERROR_SOURCES, ONE_CLASS, CNN3, FIRST_ORDER, *SETUP),
        curves=(
            Curve(title="L1 error by staleness (Fig. 2)", shows="L1 error", line="method"),
            Curve(title="Cosine error by staleness (Fig. 2)", shows="cosine error", line="method"),
        ),
        missing=(
            "That the error grows with staleness: read it from the figure. The paper prints no number.",
            "Direct is the stale update itself, which the figure does not have.",
        ),
    )


def gi_f7() -> Preset:
    """Fig. 7: inversion against first-order compensation, by staleness."""
    task = replace(MNIST, one_class_each=True, rounds=200)
    return Preset(
        name="gi-f7",
        paper="gradient inversion",
        item="Fig. 7",
        title="Errors of gradient inversion and of first-order compensation by staleness",
        cells=tuple(_errors(task, method) for method in ("GI", "GI (ours)", "direct", "first order")),
        measures=ERRORS,
        rows=("method",),
        columns=(),
        sources=(
            *_ERROR_SOURCES,
            ONE_CLASS,
            Source(
                key="GI (ours)",
                value="compensator auto before it has learned anything",
                tag="[P]",
                why="Not of the paper: 5 iterations with 32 examples, mixed with the stale update.",
            ),
            *WITHOUT_A_RUN,
            FIRST_ORDER,
            *SETUP,
        ),
        curves=(
            Curve(title="L1 error by staleness (Fig. 7)", shows="L1 error", line="method"),
            Curve(title="Cosine error by staleness (Fig. 7)", shows="cosine error", line="method"),
        ),
        claims=tuple(
            Claim(
                text=f"Beyond 50 epochs the {kind} error of gradient inversion is lower than that of first-order "
                "compensation, by up to 50 %.",
                measure=f"{kind} error at 60",
                better={"method": "GI"},
                worse={"method": "first order"},
            )
            for kind in ("L1", "cosine")
        ),
        missing=("How much lower at which staleness: the paper says up to 50 %.",),
    )


# --- reconstructed examples ---


def gi_f4() -> Preset:
    """Fig. 4: the loss around the model, over reconstructed and the client's own examples."""
    task = replace(MNIST, rounds=_BASE_ROUNDS)
    kinds = ("own", "reconstructed", "noise")
    likeness = "likeness of loss surface"
    return Preset(
        name="gi-f4",
        paper="gradient inversion",
        item="Fig. 4",
        title="The loss around the model, over the client's own examples, reconstructed ones and noise",
        cells=tuple(
            cell({"examples": kind}, task, "GI", measurement="loss surface", options={"examples": kind})
            for kind in kinds
        ),
        measures=(likeness, "loss at the model"),
        rows=("examples",),
        columns=(),
        sources=(
            Source(
                key="directions",
                value="the client's update and a random one at right angles to it, each as long as the update",
                tag="[P]",
                why="Not stated.",
            ),
            Source(
                key=likeness,
                value="correlation with the client's own surface over 21 x 21 models",
                tag="[P]",
                why="The paper shows surfaces and prints no number.",
            ),
            Source(key="noise", value="examples and labels from N(0, 1): where inversions begin", tag="[M]"),
            *ONE_CLIENT,
            ALPHA,
            *WITHOUT_A_RUN,
            *SHARES,
            *SETUP,
        ),
        method="examples",
        curves=(
            Curve(title="Loss along the client's update (Fig. 4)", shows="loss along the update", line="examples"),
        ),
        claims=(
            Claim(
                text="The loss around the model over reconstructed examples is more like that over the client's own "
                "than the loss over noise is.",
                measure=likeness,
                better={"examples": "reconstructed"},
                worse={"examples": "noise"},
            ),
        ),
        missing=("The surfaces themselves: a cut through them is drawn, and all of their points are kept.",),
    )


NEAREST = tuple(f"{measure} to {pool} examples" for measure in ("LPIPS", "SSIM", "PSNR") for pool in ("own", "others'"))


def gi_f5() -> Preset:
    """Fig. 5: the real examples most similar to reconstructed ones."""
    task = Task(data="cifar10", model="resnet18", label=2, rounds=_BASE_ROUNDS)
    return Preset(
        name="gi-f5",
        paper="gradient inversion",
        item="Fig. 5",
        title="How like reconstructed examples are to real ones",
        cells=(cell({"data": "CIFAR-10"}, task, "GI", measurement="nearest"),),
        measures=NEAREST,
        rows=("data",),
        columns=(),
        sources=(
            Source(
                key="other clients' examples",
                value="as many, drawn at random",
                tag="[P]",
                why="What is as like to these gives nothing away of the client. Not of the paper.",
            ),
            Source(
                key="model.norm",
                value="group",
                tag="[M]",
                why="BatchNorm's statistics are not parameters, so that an update does not tell them.",
            ),
            *ONE_CLIENT,
            ALPHA,
            *WITHOUT_A_RUN,
            *SHARES,
            *SETUP,
        ),
        method="data",
        missing=(
            "The images: `unstale inversion audit --plots` draws reconstructed examples and the closest real ones. The "
            "paper prints no number.",
            "LPIPS where the package lpips and the weights of its network are not on the machine.",
        ),
    )


# --- warm starts ---

SAVED = "iterations saved"
_CHANGED = {"0": 0.0, "10": 0.1, "20": 0.2, "30": 0.3, "40": 0.4, "50": 0.5}
_PUBLISHED: Mapping[str, Number] = {"0": Number(0.43, "43 %"), "20": Number(0.15, "> 15 %")}


def gi_f6() -> Preset:
    """Fig. 6: iterations saved by starting an inversion from the client's last result."""
    task = replace(MNIST, rounds=100)

    def one(percent: str, share: float, method: str) -> Cell:
        published: dict[str, Any] = {}
        if method == "GI" and percent in _PUBLISHED:
            published[SAVED] = _PUBLISHED[percent]
        return cell(
            {"changed %": percent, "method": method},
            task,
            method,
            measurement="warm start",
            options={"changed": share},
            published=published,
        )

    return Preset(
        name="gi-f6",
        paper="gradient inversion",
        item="Fig. 6",
        title="Iterations that a warm start saves, by how much of the client's data has changed",
        cells=tuple(
            one(percent, share, method) for percent, share in _CHANGED.items() for method in ("GI", "GI (ours)")
        ),
        measures=(SAVED,),
        rows=("changed %",),
        columns=("method",),
        sources=(
            Source(
                key="changed",
                value="between two tasks of the client, which are ten rounds apart",
                tag="[P]",
                why="The paper says per epoch. What changes is replaced by others' examples of the same class.",
            ),
            Source(key="changed up to", value="50 %", tag="[P]", why="How far the figure goes is not stated."),
            Source(
                key=SAVED,
                value="how much sooner the loss is there that an inversion from noise ends with, within 5 %",
                tag="[P]",
                why="Not stated.",
            ),
            OURS,
            *ONE_CLIENT[1:],
            Source(key="rounds", value="100", tag="[P]", why="The tasks are of its rounds 90 and 100. Not stated."),
            ALPHA,
            *WITHOUT_A_RUN,
            *SHARES,
            *SETUP,
        ),
        claims=(
            Claim(
                text="Where 20 % of the data has changed, less is saved than where none has (43 % there in print).",
                measure=SAVED,
                better={"changed %": "0", "method": "GI"},
                worse={"changed %": "20", "method": "GI"},
            ),
            Claim(
                text="Where 20 % of the data has changed, more than 15 % is still saved.",
                measure=SAVED,
                better={"changed %": "20", "method": "GI"},
                level=0.15,
            ),
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    "gi-f2": gi_f2,
    "gi-f4": gi_f4,
    "gi-f5": gi_f5,
    "gi-f6": gi_f6,
    "gi-f7": gi_f7,
    "gi-t1": gi_t1,
    "gi-t2": gi_t2,
}
