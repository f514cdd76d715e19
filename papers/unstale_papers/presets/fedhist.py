"""FedHist's tables and figures: fh-t1, fh-t2, fh-f4, fh-f5; and fh-controls, which is not of the paper.

The paper gives no N, K, rate, batch, local steps or rounds, and of its method's constants only h, as N / (2 K): the
values here are ours, and `learning_rate` is the first to calibrate. Cells that presets share come from one function, so
their settings are equal.
Source: FedHist (Jiang et al., 2023), docs/methods/experiments.md#fedhist-experiments
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Claim, Curve, Preset, Source
from unstale_papers.presets.fedhist_paper import (
    ACCURACIES,
    BASELINES,
    BETAS,
    FEDHIST,
    PARTITIONED,
    SETUP,
    SPEEDS,
    SPREAD,
)

CLIENTS = {"10": 100, "100": 1000}
"""N, by N/K; K is 10 in both."""


@dataclass(frozen=True, slots=True)
class _Data:
    name: str
    model: str
    rounds: int


DATA = {
    "FMNIST": _Data("fashion-mnist", "lenet_28", 2000),
    "CIFAR-10": _Data("cifar10", "lenet_cifar", 5000),
    "CIFAR-100": _Data("cifar100", "lenet_cifar", 5000),
}

_FEDHIST = {
    "alpha": 0.1,
    "utility_weight": 0.1,
    "gamma": 0.2,
    "similarity_min": 0.3,
    "egs": True,
    "haa": "full",
    "ina": True,
    "ina_norms": "raw",
}
_UNIFORM = {"weighting": "uniform"}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("fedavg", _UNIFORM),
    "FedProx": ("fedprox", _UNIFORM),
    "MOON": ("moon", _UNIFORM),
    "DynSGD": ("dynsgd", {"normalise": True}),
    "REFL": ("refl", {"beta": 0.35}),
    "TWAFL": ("twafl", {"normalise": True, "weighting": "examples"}),
    "WKAFL": (
        "wkafl",
        {"alpha": 0.1, "clip_bound": None, "stage_two_bound": 5.0, "beta": 10.0, "similarity_min": 0.3, "gamma": 0.01},
    ),
    "FedHist": ("fedhist", _FEDHIST),
}
"""Policy and its settings. FedProx and MOON need the local training of that name."""

ABLATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedHist": ("fedhist", _FEDHIST),
    "w/o-EGS": ("fedhist", {**_FEDHIST, "egs": False}),
    "w/o-HAA": ("fedhist", {**_FEDHIST, "haa": "off"}),
    "w/o-INA": ("fedhist", {**_FEDHIST, "ina": False}),
}

NO_UTILITY = ("fedhist", {**_FEDHIST, "utility_weight": 0.0})

CONTROLS: Mapping[str, tuple[str, str]] = {
    "FedAvg": ("FedAvg", "none"),
    "DynSGD": ("DynSGD", "none"),
    "REFL": ("REFL", "none"),
    "FedAvg+INA": ("FedAvg", "mean-of-updates"),
    "DynSGD+INA": ("DynSGD", "mean-of-updates"),
    "REFL+INA": ("REFL", "mean-of-updates"),
    "FedHist (lambda=0)": ("FedHist (lambda=0)", "none"),
    "FedHist": ("FedHist", "none"),
}
"""Method and `policy.norm` of fh-controls."""

RATES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "shared": dict.fromkeys(CONTROLS, (0.01, 1.0)),
    "tuned": {
        **dict.fromkeys(("FedAvg", "DynSGD", "REFL"), (0.1, 1.0)),
        **dict.fromkeys(("DynSGD+INA", "REFL+INA", "FedHist"), (0.02, 1.0)),
    },
    "both tuned": dict.fromkeys(("FedAvg", "DynSGD", "REFL+INA", "FedHist"), (0.1, 0.3)),
}
"""Learning rates and server multipliers of fh-controls: shared, with a tuned learning rate, and with both tuned. The
searches found the shared rate for FedAvg+INA, and a multiplier of 1 for REFL; others were not searched.
"""

SLOW_HOLDERS = """\
# Who holds the tenth class takes twice as long; tasks take exponential times of mean 1 s.
groups:
  - name: everyone
    device:
      task: {distribution: exponential, mean_s: 1}
  - name: slow
    clients: {holding: 9}
    device:
      task: {distribution: exponential, mean_s: 1}
      factor: 2
"""
"""For partition slow-class: the ready scenario slow-tenth draws its tenth regardless of the clients' classes."""

_SLOW_CLASS = {"name": "slow-class", "slow_share": 0.1, "slow_class": 9}

# --- cells ---


def _settings(
    data: str,
    partition: Mapping[str, Any],
    ratio: str,
    method: str,
    scenario: str | None = "exponential",
    *,
    learning_rate: float = 0.01,
    norm: str = "none",
    server_multiplier: float = 1.0,
) -> Settings:
    published, (policy, own) = DATA[data], {**METHODS, **ABLATIONS, "FedHist (lambda=0)": NO_UTILITY}[method]
    training: dict[str, Any] = {"name": "sgd", "learning_rate": learning_rate, "batch_size": 32, "steps": 5}
    if policy == "fedprox":
        training.update(name="fedprox", mu=0.01)
    if policy == "moon":
        training.update(name="moon", mu=0.1, temperature=0.5)
    return Settings(
        clients=CLIENTS[ratio],
        rounds=published.rounds,
        evaluate_every=20,
        model={"name": published.model},
        data={"name": published.name, "normalise": "standard"},
        partition={**partition, "min_examples": 8},
        training=training,
        policy={"name": policy, "settings": dict(own), "norm": norm, "server_multiplier": server_multiplier},
        trigger={"name": "k-async", "k": 10},
        scenario={"name": scenario},
    )


def _beta(beta: str) -> dict[str, Any]:
    return {"name": "iid"} if beta == "IID" else {"name": "dirichlet", "alpha": float(beta)}


def _cell(data: str, beta: str, ratio: str, method: str) -> Cell:
    """A cell with its numbers of Table I."""
    known = ACCURACIES.get((data, beta, ratio, method))
    return Cell(
        labels={"data": data, "beta": beta, "N/K": ratio, "method": method},
        settings=_settings(data, _beta(beta), ratio, method),
        published={} if known is None else {"final accuracy": known},
    )


def _along(cell: Cell, *axes: str) -> Cell:
    """The cell without the axes on which all cells of a preset are equal."""
    return replace(cell, labels={axis: cell.labels[axis] for axis in axes})


# --- presets ---


def fh_t1() -> Preset:
    """Table I: final accuracy, three data sets, three partitions, two levels of staleness, eight methods."""
    cells = tuple(
        _cell(data, beta, ratio, method) for ratio in CLIENTS for method in METHODS for data in DATA for beta in BETAS
    )
    return Preset(
        name="fh-t1",
        paper="FedHist",
        item="Table I",
        title="Final test accuracy by partition and staleness",
        cells=cells,
        measures=("final accuracy", "best accuracy"),
        rows=("N/K", "method"),
        columns=("data", "beta"),
        sources=(PARTITIONED, *SETUP, *FEDHIST, *BASELINES),
        claims=tuple(
            Claim(
                text=f"FedHist is more accurate than every other method on {data} at N/K {ratio} (Table I).",
                measure="final accuracy",
                better={"data": data, "N/K": ratio, "method": "FedHist"},
            )
            for data in DATA
            for ratio in CLIENTS
        ),
        missing=(SPREAD, "The authors' own code, which could not be obtained."),
    )


def fh_t2() -> Preset:
    """Table II and Fig. 3: rounds to 40 % on CIFAR-10, speedup over FedAvg, and the curves."""
    cells = []
    for method in METHODS:
        for beta in BETAS:
            cell = _along(_cell("CIFAR-10", beta, "100", method), "beta", "method")
            cells.append(replace(cell, published={**SPEEDS[beta, method], **cell.published}))
    ratio = Source(
        key="N/K",
        value="100",
        tag="[M]",
        why="Not stated; at beta 0.3 the order of the methods is that of Table I at N/K 100, but for DynSGD and REFL, "
        "and not at 10. The final accuracies shown here are those of Table I.",
    )
    fastest = {"method": "FedHist"}
    return Preset(
        name="fh-t2",
        paper="FedHist",
        item="Table II, Fig. 3",
        title="Rounds to 40 % on CIFAR-10, and speedup over FedAvg",
        cells=tuple(cells),
        measures=(
            *("rounds to 40 %", "rounds to 40 %, averaged", "speedup", "final accuracy"),
            *("accuracy of the last fifth", "aggregated gradients"),
        ),
        rows=("method",),
        columns=("beta",),
        sources=(ratio, PARTITIONED, *SETUP, *FEDHIST, *BASELINES),
        curves=(Curve(title="Test accuracy on CIFAR-10 (Fig. 3)", shows="accuracy", line="method", target=0.4),),
        claims=(
            Claim(
                text="FedHist reaches 40 % in fewer rounds than every other method (Table II).",
                measure="rounds to 40 %",
                better=fastest,
            ),
            Claim(
                text="FedHist reaches 40 % at least 1.75 times as fast as FedAvg. (The text says 1.8 to 2.0 times; "
                "the table's least is 1.76, on IID data.)",
                measure="rounds to 40 %",
                better=fastest,
                worse={"method": "FedAvg"},
                at_least=1.75,
                as_ratio=True,
                each=True,
            ),
            Claim(
                text="FedHist is more accurate than every other method on CIFAR-10 at N/K 100 (Table I).",
                measure="final accuracy",
                better=fastest,
            ),
        ),
        missing=(
            SPREAD,
            "How long the runs of Table II were: MOON needs 4324 rounds to 40 % at beta 0.3 and ends at 41.59 % in "
            "Table I, so somewhat longer.",
        ),
    )


_BASE = ("FedAvg", "DynSGD", "REFL")


def _controlled() -> Iterator[tuple[tuple[str, str], tuple[str, str], str]]:
    """Rate and method of the better and of the worse cell of each claim about controls, and its text."""
    for rate, at in (("shared", "At one learning rate"), ("tuned", "With a learning rate tuned for each")):
        for method in _BASE:
            longer = f"{method}+INA"
            yield (rate, "FedHist"), (rate, method), f"{at} FedHist is more accurate than {method}."
            yield (rate, longer), (rate, method), f"{at} steps of FedHist's length make {method} more accurate."
            yield (rate, "FedHist"), (rate, longer), f"{at} FedHist is more accurate than {longer}."
        without = "FedHist (lambda=0)"
        yield (rate, "FedHist"), (rate, without), f"{at} utilities of updates make FedHist more accurate."
    for method in (*_BASE, "REFL+INA"):
        both = f"With learning rate and server multiplier tuned FedHist is more accurate than {method}."
        yield ("both tuned", "FedHist"), ("both tuned" if method in RATES["both tuned"] else "tuned", method), both


def fh_controls() -> Preset:
    """Baselines with FedHist's step length, and FedHist without utilities, at shared and at tuned rates."""
    cells = tuple(
        Cell(
            labels={"rate": rate, "method": name},
            settings=_settings(
                "CIFAR-10",
                _beta("0.3"),
                "10",
                method,
                norm=norm,
                learning_rate=by_method[name][0],
                server_multiplier=by_method[name][1],
            ),
        )
        for rate, by_method in RATES.items()
        for name, (method, norm) in CONTROLS.items()
        if name in by_method
    )
    tuned = ", ".join(f"{name} {learning_rate:g}" for name, (learning_rate, _) in RATES["tuned"].items())
    both = ", ".join(f"{name} {one:g} and {other:g}" for name, (one, other) in RATES["both tuned"].items())
    return Preset(
        name="fh-controls",
        paper="FedHist",
        item="controls for Table I",
        title="FedHist beside baselines with its step length",
        cells=cells,
        measures=("final accuracy", "accuracy of the last fifth", "rounds to 30 %"),
        rows=("rate", "method"),
        columns=(),
        sources=(
            Source(
                key="rate",
                value=f"shared: learning rate 0.01; tuned: {tuned}; both tuned, with the server multiplier: {both}",
                tag="[P]",
                why="The best of a search for each method, on a validation split of the training set.",
            ),
            PARTITIONED,
            *(source for source in SETUP if source.key != "training.learning_rate"),
            *FEDHIST,
            *BASELINES,
        ),
        curves=(Curve(title="Controls on CIFAR-10", shows="accuracy", line="method", target=0.3),),
        claims=tuple(
            Claim(
                text=text,
                measure="final accuracy",
                better={"rate": better[0], "method": better[1]},
                worse={"rate": worse[0], "method": worse[1]},
            )
            for better, worse, text in _controlled()
            if better[1] in RATES[better[0]] and worse[1] in RATES[worse[0]]
        ),
        missing=("The paper has no controls with equal step length, and no rates tuned for each method.",),
    )


def fh_f4() -> Preset:
    """Fig. 4: FedHist without each of its three parts, on CIFAR-10."""
    cells = tuple(
        _along(_cell("CIFAR-10", beta, ratio, method), "beta", "N/K", "method")
        for ratio in CLIENTS
        for beta in ("0.3", "1.0")
        for method in ABLATIONS
    )
    shown = Source(
        key="beta and N/K",
        value="0.3 and 1.0, each at 10 and 100",
        tag="[P]",
        why="The figure has several of both. The accuracies printed for FedHist itself are those of Table I.",
    )
    off = Source(
        key="w/o-HAA",
        value="equal weights",
        tag="[M]",
        why="The paper does not say which weights remain. With haa at staleness they are (e/2)^-tau.",
    )
    return Preset(
        name="fh-f4",
        paper="FedHist",
        item="Fig. 4",
        title="FedHist without each of its parts, on CIFAR-10",
        cells=cells,
        measures=("final accuracy", "stability", "rounds to 40 %"),
        rows=("N/K", "method"),
        columns=("beta",),
        sources=(shown, off, PARTITIONED, *SETUP, *FEDHIST),
        curves=(Curve(title="Ablation on CIFAR-10 (Fig. 4)", shows="accuracy", line="method", target=0.4),),
        claims=tuple(
            Claim(text=text, measure=measure, better={"method": "FedHist"}, worse={"method": without})
            for without, measure, text in (
                ("w/o-EGS", "stability", "Without EGS training is less stable."),
                ("w/o-HAA", "stability", "Without HAA training is less stable."),
                ("w/o-INA", "rounds to 40 %", "Without INA training is slower."),
            )
        ),
        missing=(
            "The paper prints no number for its ablations. It shows stability by its curves and does not say how it is "
            "measured: here it is WKAFL's. It names no level for speed: here it is Table II's 40 %.",
        ),
    )


def fh_f5() -> Preset:
    """Fig. 5: accuracy on the tenth class, which only slow clients have."""
    cells = tuple(
        Cell(
            labels={"data": data, "beta": beta, "N/K": ratio, "method": method},
            settings=_settings(data, {**_SLOW_CLASS, "alpha": float(beta)}, ratio, method, scenario=None),
            scenario=SLOW_HOLDERS,
        )
        for data in ("CIFAR-10", "FMNIST")
        for ratio in CLIENTS
        for beta in ("0.3", "1.0")
        for method in METHODS
    )
    split = (
        Source(
            key="data, beta and N/K",
            value="CIFAR-10 and FMNIST, 0.3 and 1.0, each at 10 and 100",
            tag="[P]",
            why="The figure has several betas and N/K.",
        ),
        Source(
            key="partition.name",
            value="slow-class: the tenth class at a few slow clients, the others by Dirichlet",
            tag="paper",
        ),
        Source(key="partition.slow_share", value="0.1", tag="[M]", why='The paper says "a small fraction".'),
        Source(key="slow clients", value="half the update frequency", tag="paper"),
        Source(
            key="who is slow",
            value="everybody who holds the tenth class",
            tag="[M]",
            why="A Dirichlet draw leaves some of the tenth that it goes to with none of it (about a quarter of them at "
            "beta 0.3 and N 1000): these are like all others.",
        ),
    )
    setup = tuple(source for source in SETUP if source.key != "scenario.name")
    return Preset(
        name="fh-f5",
        paper="FedHist",
        item="Fig. 5",
        title="Accuracy on the tenth class, which slow clients alone hold",
        cells=cells,
        measures=("final accuracy of class 9", "final accuracy"),
        rows=("N/K", "method"),
        columns=("data", "beta"),
        sources=(*split, *setup, *FEDHIST, *BASELINES),
        curves=(Curve(title="Accuracy on the tenth class (Fig. 5)", shows="class accuracy 9", line="method"),),
        claims=tuple(
            Claim(
                text=f"FedHist is the most accurate on the tenth class of {data}.",
                measure="final accuracy of class 9",
                better={"data": data, "method": "FedHist"},
            )
            for data in ("CIFAR-10", "FMNIST")
        ),
        missing=("The paper prints no number for this figure.",),
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    "fh-t1": fh_t1,
    "fh-t2": fh_t2,
    "fh-controls": fh_controls,
    "fh-f4": fh_f4,
    "fh-f5": fh_f5,
}
