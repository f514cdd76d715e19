"""Orders of convergence on problems with a known optimum: th-wkafl, th-fedbuff and th-fedasync.

Source: ours, docs/methods/experiments.md#theory-experiments
"""

from collections.abc import Callable, Mapping
from typing import Any

from unstale_papers.preset import Cell, Claim, Curve, Preset, Source
from unstale_papers.presets.theory_setup import (
    EQUAL_CLIENTS,
    FIRST,
    LOGISTIC,
    PRECISION,
    PROBLEM,
    QUADRATIC,
    settings_of,
)

# --- WKAFL ---

_NOISE = {"noise": 3.0}
_UPDATES = [1, 2, 4, 8, 16]
_RATIO_MEASURES = ("mean squared gradient", "speed-up")
_K_METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "WKAFL": (
        "wkafl",
        {"alpha": 0.1, "clip_bound": None, "stage_two_bound": 5.0, "beta": 10.0, "similarity_min": 0.3, "gamma": 0.01},
    ),
    "TWAFL": ("twafl", {"normalise": True}),
    "FedAvg": ("fedavg", {"weighting": "uniform"}),
}
_CLIENTS = {"equal": {**QUADRATIC, **EQUAL_CLIENTS}, "different": {**QUADRATIC, "heterogeneity": 2.0}}


def th_wkafl() -> Preset:
    """The speed-up of more updates per round."""

    def one(clients: str, method: str) -> Cell:
        policy, chosen = _K_METHODS[method]
        return Cell(
            labels={"clients": clients, "method": method},
            settings=settings_of(
                policy, chosen, {}, clients=32, rounds=500, trigger={"name": "k-async", "k": max(_UPDATES)}
            ),
            measurement="scaling",
            options={**_CLIENTS[clients], **_NOISE, "step": 0.3, "over": "K", "values": _UPDATES},
        )

    exponent = "exponent in K"
    return Preset(
        name="th-wkafl",
        paper="WKAFL",
        item="convergence analysis",
        title="Speed-up by the number K of updates in a round, on quadratics with noisy gradients",
        cells=tuple(one(clients, method) for clients in _CLIENTS for method in _K_METHODS),
        measures=(exponent, *_RATIO_MEASURES),
        rows=("clients", "method"),
        columns=(),
        sources=(
            Source(
                key="theorem",
                value="linear speed-up in K",
                tag="paper",
                why="As the paper is cited: the mean squared gradient of T rounds is of the order 1 / sqrt(K T), so "
                "that K times as many updates need a K-th of the rounds. Its constants are not compared.",
            ),
            Source(
                key="training.learning_rate",
                value="0.3 sqrt(K/T)",
                tag="[P]",
                why="The step for which this order is known; 0.3 is stable with the greatest staleness.",
            ),
            Source(key="clients and rounds", value="32 and 500", tag="[P]"),
            Source(key="K", value="1, 2, 4, 8 and 16, a run each", tag="[P]"),
            Source(key="noise", value="standard deviation 3 of each number of a gradient", tag="[P]"),
            Source(key="clients equal", value="all have one objective", tag="[P]"),
            Source(key="WKAFL's constants", value="of its released code", tag="R:WK"),
            Source(key="parameters", value="10", tag="[P]"),
            PROBLEM,
            FIRST,
            PRECISION,
        ),
        curves=(Curve(title="Mean squared gradient over K", shows="mean squared gradient", line="method"),),
        claims=tuple(
            Claim(
                text=f"{method} has a linear speed-up in K with {clients} clients: the exponent of the mean squared "
                "gradient is at most -0.4.",
                measure=exponent,
                better={"clients": clients, "method": method},
                level=-0.4,
            )
            for clients in _CLIENTS
            for method in _K_METHODS
        ),
        missing=("The constants of the bound: they are not in our sources.",),
    )


# --- FedBuff ---

_SLOW = """\
# Tasks take exponential times of mean 1 s; a half of the clients takes eight times as long.
groups:
  - name: everyone
    device:
      task: {distribution: exponential, mean_s: 1}
  - name: slow
    clients: {share: 0.5}
    device:
      task: {distribution: exponential, mean_s: 1}
      factor: 8
"""
_MANY = {"dimension": 50}  # so that the mean squared gradient varies less
_BUFFERED: Mapping[str, tuple[Mapping[str, Any], str | None]] = {
    "equal": ({**_CLIENTS["equal"], **_MANY, **_NOISE, "step": 1.0}, None),
    "different": ({**_CLIENTS["different"], **_MANY, **_NOISE, "step": 1.0}, None),
    "different, half slow": ({**_CLIENTS["different"], **_MANY, **_NOISE, "step": 1.0}, _SLOW),
    "logistic, different": ({**LOGISTIC, **_MANY, "noise": 1.0, "step": 4.0}, None),
}
"""Options and scenario by clients."""


def th_fedbuff() -> Preset:
    """FedBuff's order in the rounds."""

    def one(clients: str) -> Cell:
        options, scenario = _BUFFERED[clients]
        return Cell(
            labels={"clients": clients, "method": "FedBuff"},
            settings=settings_of(
                "fedbuff",
                {"staleness": "polynomial"},
                {},
                clients=20,
                rounds=1024,
                trigger={"name": "buffered", "k": 4},
            ),
            measurement="scaling",
            options={**options, "over": "T", "values": [1 / 4, 1 / 2, 1]},
            scenario=scenario,
        )

    exponent = "exponent in T"
    return Preset(
        name="th-fedbuff",
        paper="FedBuff",
        item="convergence theorem",
        title="Order of the mean squared gradient in the rounds, on problems with noisy gradients",
        cells=tuple(one(clients) for clients in _BUFFERED),
        measures=(exponent, "mean squared gradient"),
        rows=("clients", "method"),
        columns=(),
        sources=(
            Source(
                key="theorem",
                value="the mean squared gradient of T rounds is of the order 1 / sqrt(T)",
                tag="paper",
                why="As the paper is cited: for smooth objectives with bounded staleness and clients that arrive "
                "equally often. Its constants are not compared.",
            ),
            Source(
                key="training.learning_rate",
                value="c sqrt(K/T) with c 1, logistic 4",
                tag="[M]",
                why="Falls with the rounds as the theorem needs. c is ours: it leaves the first model in 256 rounds.",
            ),
            Source(key="trigger.k", value="4", tag="[P]", why="The paper has 10."),
            Source(key="clients", value="20", tag="[P]"),
            Source(key="rounds", value="1024; runs of T = 256, 512 and 1024", tag="[P]"),
            Source(key="noise", value="standard deviation 3 of each number of a gradient, logistic 1", tag="[P]"),
            Source(
                key="half slow",
                value="a half of the clients takes eight times as long",
                tag="[P]",
                why="They arrive less often, which the theorem excludes.",
            ),
            Source(key="parameters", value="50", tag="[P]"),
            PROBLEM,
            Source(key="logistic", value="40 examples of each client, l2 weight 0.1", tag="[P]"),
            FIRST,
            PRECISION,
        ),
        curves=(Curve(title="Mean squared gradient over T", shows="mean squared gradient", line="method"),),
        claims=tuple(
            Claim(
                text=f"FedBuff's mean squared gradient is of the order 1 / sqrt(T): the exponent is at most -0.4, "
                f"clients: {clients}.",
                measure=exponent,
                better={"clients": clients, "method": "FedBuff"},
                level=-0.4,
            )
            for clients in _BUFFERED
        ),
        missing=("The constants of the bound: they are not in our sources.",),
    )


# --- FedAsync ---

_ROUND = {**QUADRATIC, "curvature": [1.0, 1.0]}
_SPHERES = {"equal": {**_ROUND, **EQUAL_CLIENTS}, "different": _ROUND}
_ALPHAS = ("0.1", "0.3", "0.6")


def th_fedasync() -> Preset:
    """FedAsync's rate, and where it ends."""

    def one(clients: str, alpha: str) -> Cell:
        return Cell(
            labels={"clients": clients, "alpha": alpha},
            settings=settings_of(
                "fedasync",
                {"alpha": float(alpha), "staleness": "polynomial", "exponent": 0.5},
                {"name": "sgd", "steps": 5, "learning_rate": 0.05},
                clients=10,
                rounds=3000,
                trigger={"name": "async"},
            ),
            measurement="linear rate",
            options=_SPHERES[clients],
        )

    distance, ratio = "squared distance", "rate over the predicted one"
    return Preset(
        name="th-fedasync",
        paper="FedAsync",
        item="convergence theorem",
        title="Rate and last distance to the optimum, on strongly convex quadratics with one curvature",
        cells=tuple(one(clients, alpha) for clients in _SPHERES for alpha in _ALPHAS),
        measures=("rate", "predicted rate", ratio, "rate without staleness", distance),
        rows=("clients", "alpha"),
        columns=(),
        sources=(
            Source(
                key="theorem",
                value="near-linear convergence to a global optimum for strongly convex problems",
                tag="paper",
                why="The abstract; the constants of the bound are not compared.",
            ),
            Source(
                key="predicted rate",
                value="the root of the mean recursion with staleness",
                tag="[M]",
                why="Derived in docs/methods/experiments.md; stalenesses count as independent.",
            ),
            Source(key="alpha", value="0.6, also 0.1 and 0.3", tag="paper", why="0.1 and 0.3 are ours."),
            Source(key="local steps", value="5 of 0.05", tag="[P]"),
            Source(key="clients and rounds", value="10 and 3000", tag="[P]"),
            Source(key="clients equal", value="all have one objective", tag="[P]"),
            Source(
                key="objective",
                value="mean of |x - b_i|^2 / 2 with 10 parameters",
                tag="[P]",
                why="All directions have one rate. b_i is normal around a common centre.",
            ),
            FIRST,
            PRECISION,
        ),
        method="alpha",
        curves=(Curve(title="Squared distance to the optimum", shows=distance, line="alpha"),),
        claims=(
            *(
                Claim(
                    text=f"FedAsync converges to the optimum with {clients} clients: the squared distance ends below "
                    "1e-8.",
                    measure=distance,
                    better={"clients": clients},
                    level=1e-8,
                )
                for clients in _SPHERES
            ),
            Claim(
                text="With different clients a smaller alpha ends nearer to the optimum.",
                measure=distance,
                better={"clients": "different", "alpha": "0.1"},
                worse={"alpha": "0.6"},
            ),
            Claim(
                text="Ours: with equal clients the approach is linear with at least 0.9 of the predicted rate.",
                measure=ratio,
                better={"clients": "equal"},
                level=0.9,
            ),
        ),
        missing=("The constants of the bound: they are not in our sources.",),
    )


PRESETS: dict[str, Callable[[], Preset]] = {"th-wkafl": th_wkafl, "th-fedbuff": th_fedbuff, "th-fedasync": th_fedasync}
