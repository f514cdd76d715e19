"""WKAFL's tables and figures: wk-f2, wk-f5, wk-f6, wk-t2, wk-t3.

The paper prints no constant of its method: the values here are those of the released code. Cells that presets share
come from one function, so their settings are equal.
Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/experiments.md#wkafl-experiments
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Claim, Curve, Preset, Source
from unstale_papers.presets.wkafl_paper import (
    BASELINES,
    CENTRALISED,
    CLAIMS_2,
    CLAIMS_3,
    GSGM,
    GSGM_RATES,
    LABEL_RATES,
    LABELS,
    METHODS_2,
    METHODS_3,
    NATURAL,
    NATURAL_RATES,
    ONE_LABEL,
    SETUP,
    STABILITY,
    TABLE_2,
    TABLE_3,
    WKAFL,
)

SIZES_2 = {
    "EMNIST-MNIST": {"100": (1000, 10), "150": (3000, 20), "300": (3000, 10)},
    "CIFAR-10": {"50": (1000, 20), "150": (3000, 20), "300": (3000, 10)},
}
"""P and K, by P/K, of Table 2."""

SIZES_3 = {"EMNIST-MNIST": (3000, 10), "CIFAR-10": (3000, 20)}
SIZES_NATURAL = {"CelebA": (2000, 15), "EMNIST-ByClass": (3000, 20)}
ABLATIONS = ("No-GradSel", "No-Staleness", "No-NonIIDness")

_REMOVED: Mapping[str, Mapping[str, Any]] = {
    "No-GradSel": {"no_gradient_selection": True},
    "No-Staleness": {"no_staleness": True},
    "No-NonIIDness": {"no_non_iidness": True},
    "by-staleness": {"no_gradient_selection": True, "gamma": 0.0},
}
"""Policies other than WKAFL. by-staleness, of Fig. 2: momentum and (e/2)^-tau, no selection, one learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """clip_bound, stage_two_bound, beta, gamma, stage_two_round: CB, B, beta, gamma and J2. learning_rate:
    WKAFL's. rates: of methods with another rate, by name.
    """

    name: str
    model: str
    partition: Mapping[str, Any]
    rounds: int
    evaluate_every: int
    learning_rate: float
    batch_size: int
    clip_bound: float
    stage_two_bound: float
    beta: float
    gamma: float
    stage_two_round: int
    gsgm_alpha: float
    rates: Mapping[str, float] = field(default_factory=dict)


_FEW_LABELS = {"name": "label-count", "smallest": 10, "largest": 49}

DATA = {
    "CIFAR-10": _Data(
        name="cifar10",
        model="lenet_cifar",
        partition={**_FEW_LABELS, "pool": 5000},
        rounds=10_000,
        evaluate_every=100,
        learning_rate=0.0005,
        batch_size=8,
        clip_bound=70.0,
        stage_two_bound=5.0,
        beta=50.0,
        gamma=0.01,
        stage_two_round=3500,
        gsgm_alpha=0.1,
        rates={"GSGM": 1e-5},
    ),
    "EMNIST-MNIST": _Data(
        name="emnist-mnist",
        model="emnist_cnn",
        partition={**_FEW_LABELS, "pool": 6000},
        rounds=5000,
        evaluate_every=50,
        learning_rate=0.005,
        batch_size=4,
        clip_bound=100.0,
        stage_two_bound=10.0,
        beta=10.0,
        gamma=0.1,
        stage_two_round=1000,
        gsgm_alpha=0.1,
        rates={"TWAFL": 0.0005, "GSGM": 1e-6},
    ),
    "EMNIST-ByClass": _Data(
        name="emnist-byclass",
        model="emnist_cnn",
        partition={"name": "natural", "min_examples": 16},
        rounds=10_000,
        evaluate_every=100,
        learning_rate=0.005,
        batch_size=16,
        clip_bound=100.0,
        stage_two_bound=10.0,
        beta=10.0,
        gamma=0.1,
        stage_two_round=5000,
        gsgm_alpha=0.9,
    ),
    "CelebA": _Data(
        name="celeba",
        model="celeba_cnn",
        partition={"name": "natural", "min_examples": 4},
        rounds=5000,
        evaluate_every=100,
        learning_rate=0.0001,
        batch_size=4,
        clip_bound=500.0,
        stage_two_bound=5.0,
        beta=20.0,
        gamma=0.05,
        stage_two_round=1000,
        gsgm_alpha=0.9,
    ),
}

# --- cells ---


def _policy(method: str, of: _Data) -> dict[str, Any]:
    baselines: dict[str, tuple[str, dict[str, Any]]] = {
        "TWAFL": ("twafl", {"normalise": True, "weighting": "examples"}),
        "SASGD": ("sasgd", {"divide_by_k": True}),
        "GSGM": ("gsgm", {"alpha": of.gsgm_alpha, "released": False}),
    }
    wkafl = {
        "alpha": 0.1,
        "clip_bound": of.clip_bound,
        "stage_two_bound": of.stage_two_bound,
        "beta": of.beta,
        "similarity_min": 0.3,
        "gamma": of.gamma,
        "stage_two_round": of.stage_two_round,
        "momentum": "estimate",
        "rate_staleness": "zero-based",
        "threshold": "inclusive",
        "zero_gradient": "dissimilar",
        **_REMOVED.get(method, {}),
    }
    name, settings = baselines.get(method, ("wkafl", wkafl))
    return {"name": name, "settings": settings}


def _cell(labels: Mapping[str, str], size: tuple[int, int], classes: int | None = None) -> Cell:
    """labels: `data` and `method` determine the settings. size: P and K. classes: L_num of a client, if given."""
    of = DATA[labels["data"]]
    clients, updates = size
    policy = _policy(labels["method"], of)
    return Cell(
        labels=labels,
        settings=Settings(
            clients=clients,
            rounds=of.rounds,
            evaluate_every=of.evaluate_every,
            model={"name": of.model},
            data={"name": of.name, "normalise": "raw"},
            partition=dict(of.partition) if classes is None else {**of.partition, "classes": classes},
            training={
                "name": "gradient",
                "learning_rate": of.rates.get(labels["method"], of.learning_rate),
                "batch_size": of.batch_size,
            },
            policy=policy,
            trigger={"name": "k-async", "k": updates},
            scenario={"name": "exponential"},
        ),
        in_rounds=("policy.settings.stage_two_round",) if policy["name"] == "wkafl" else (),
    )


# --- presets ---


def wk_f2() -> Preset:
    """Fig. 2: heavy gradients of a round when only staleness weights them, and their staleness."""
    method = "by-staleness"
    cells = tuple(
        replace(
            _cell({"data": "EMNIST-MNIST", "method": method}, (1000, k), classes=1),
            labels={"K": str(k), "method": method},
        )
        for k in (5, 10, 20, 40)
    )
    return Preset(
        name="wk-f2",
        paper="WKAFL",
        item="Fig. 2",
        title="Weights and staleness of what is aggregated, on EMNIST-MNIST",
        cells=cells,
        measures=("average staleness", "aggregated gradients", "few heavy gradients", "final accuracy"),
        rows=("K",),
        columns=("method",),
        sources=(
            Source(key="clients", value="1000", tag="[P]"),
            Source(
                key="trigger.k",
                value="10 for Fig. 2a; 5, 10, 20 and 40 for Fig. 2b",
                tag="[P]",
                why="The paper does not say what varies from point to point.",
            ),
            Source(
                key="aggregated gradients",
                value="those of at least a tenth of the largest weight of their round",
                tag="[M]",
                why="The paper's mu is not stated.",
            ),
            Source(
                key="by-staleness",
                value="momentum and weights (e/2)^-tau, nothing selected, one learning rate",
                tag="[M]",
                why="No-GradSel without adaptation of the learning rate; clipping and its bounds stay.",
            ),
            ONE_LABEL,
            *LABELS,
            *SETUP,
            *WKAFL,
        ),
        curves=(
            Curve(title="Gradients with weight over 0.1 (Fig. 2a)", shows="heavy gradients", line="K"),
            Curve(
                title="Average staleness over aggregated gradients (Fig. 2b)",
                shows="staleness over aggregated gradients",
                line="method",
            ),
        ),
        missing=(
            "A verdict on that almost always at most 5 gradients of a round weigh more than 0.1: it compares no cells. "
            "The table has the share of rounds of which it is true, and the histogram shows it.",
            "A verdict on that average staleness is roughly linear in the number of aggregated gradients: it is about "
            "a line through all cells; the figure shows it.",
        ),
    )


def _natural(methods: tuple[str, ...]) -> tuple[Cell, ...]:
    return tuple(
        _cell({"data": data, "method": method}, size) for data, size in SIZES_NATURAL.items() for method in methods
    )


_WRITERS = (
    "ByClass without its writers, which emnist-byclass.mat of the release alone has: partition natural-synthetic would "
    "draw clients like writers, and what comes of it would be synthetic."
)
_FASTEST = (
    "A verdict on that WKAFL is the fastest: no level is named that would be reached; the curves show it.",
    "Numbers: the figure has curves alone.",
)


def wk_f5() -> Preset:
    """Fig. 5: WKAFL without each of its parts, clients by celebrity and by writer."""
    highest = [(data, "WKAFL", other) for data in SIZES_NATURAL for other in ABLATIONS]
    lowest = [(data, other, "No-Staleness") for data in SIZES_NATURAL for other in ("No-GradSel", "No-NonIIDness")]
    return Preset(
        name="wk-f5",
        paper="WKAFL",
        item="Fig. 5",
        title="WKAFL without each of its parts, on CelebA and EMNIST-ByClass",
        cells=_natural(("WKAFL", *ABLATIONS)),
        measures=("final accuracy", "best accuracy"),
        rows=("method",),
        columns=("data",),
        sources=(
            Source(
                key="ablations",
                value="without the named part alone",
                tag="[M]",
                why="The released code drops the bound CB, too, in two of them, and on CelebA in all.",
            ),
            *NATURAL,
            *SETUP,
            *WKAFL,
        ),
        curves=(Curve(title="Ablation (Fig. 5)", shows="accuracy", line="method"),),
        claims=tuple(
            Claim(
                text=f"On {data} {better} ends higher than {worse}.",
                measure="final accuracy",
                better={"data": data, "method": better},
                worse={"method": worse},
            )
            for data, better, worse in (*highest, *lowest)
        ),
        missing=(*_FASTEST, _WRITERS),
    )


def wk_f6() -> Preset:
    """Fig. 6: the methods, clients by celebrity and by writer."""
    return Preset(
        name="wk-f6",
        paper="WKAFL",
        item="Fig. 6",
        title="Methods on CelebA and EMNIST-ByClass",
        cells=_natural(METHODS_3),
        measures=("final accuracy", "best accuracy"),
        rows=("method",),
        columns=("data",),
        sources=(*NATURAL, *SETUP, NATURAL_RATES, *WKAFL, *BASELINES, GSGM),
        curves=(Curve(title="Methods (Fig. 6)", shows="accuracy", line="method"),),
        claims=tuple(
            Claim(
                text=f"On {data} WKAFL ends higher than every other method.",
                measure="final accuracy",
                better={"data": data, "method": "WKAFL"},
            )
            for data in SIZES_NATURAL
        ),
        missing=(*_FASTEST, _WRITERS),
    )


def wk_t2() -> Preset:
    """Table 2, Fig. 7 and 8: accuracy by staleness."""
    cells = tuple(
        replace(
            _cell({"data": data, "P/K": ratio, "method": method}, size, classes=1),
            published=TABLE_2[data, ratio, method],
        )
        for data, sizes in SIZES_2.items()
        for ratio, size in sizes.items()
        for method in METHODS_2
    )
    return Preset(
        name="wk-t2",
        paper="WKAFL",
        item="Table 2, Fig. 7, 8",
        title="Accuracy by staleness",
        cells=cells,
        measures=("final accuracy", "best accuracy"),
        rows=("data", "P/K"),
        columns=("method",),
        sources=(
            Source(
                key="clients and trigger.k",
                value="by P/K",
                tag="paper",
                why="The text calls the lowest staleness on CIFAR-10 100, the table 50.",
            ),
            ONE_LABEL,
            Source(
                key="numbers at P/K 150 on EMNIST-MNIST",
                value="as printed",
                tag="paper",
                why="TWAFL's and SASGD's are those of Table 3 for five labels, at staleness 300.",
            ),
            *LABELS,
            *SETUP,
            *LABEL_RATES,
            *WKAFL,
            *BASELINES,
        ),
        curves=(Curve(title="Test accuracy by staleness (Fig. 7, 8)", shows="accuracy", line="method"),),
        claims=CLAIMS_2,
        missing=(CENTRALISED,),
    )


def wk_t3() -> Preset:
    """Table 3, Fig. 9 and 10: accuracy and stability by the number of labels of a client."""
    cells = tuple(
        replace(
            _cell({"data": data, "L_num": labels, "method": method}, size, classes=int(labels)),
            published=TABLE_3[data, labels, method],
        )
        for data, size in SIZES_3.items()
        for labels in ("1", "5", "10")
        for method in METHODS_3
    )
    return Preset(
        name="wk-t3",
        paper="WKAFL",
        item="Table 3, Fig. 9, 10",
        title="Accuracy and training stability by labels of a client",
        cells=cells,
        measures=("final accuracy", "stability", "best accuracy"),
        rows=("data", "L_num"),
        columns=("method",),
        sources=(
            Source(
                key="clients and trigger.k", value="3000 and 10 on EMNIST-MNIST, 3000 and 20 on CIFAR-10", tag="paper"
            ),
            STABILITY,
            *LABELS,
            *SETUP,
            *LABEL_RATES,
            *GSGM_RATES,
            *WKAFL,
            *BASELINES,
            GSGM,
        ),
        curves=(Curve(title="Test accuracy by labels of a client (Fig. 9, 10)", shows="accuracy", line="method"),),
        claims=CLAIMS_3,
        missing=(
            "An explanation for TWAFL's 0.4141 on CIFAR-10 with one label: Table 2 has 0.4241 for the same runs.",
            "An explanation for TWAFL on CIFAR-10 with 5 and 10 labels: the table has it above WKAFL.",
            "The 85.53 % that the text has for GSGM: the table has it for SASGD, and 0.9057 for GSGM.",
            CENTRALISED,
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    "wk-f2": wk_f2,
    "wk-f5": wk_f5,
    "wk-f6": wk_f6,
    "wk-t2": wk_t2,
    "wk-t3": wk_t3,
}
