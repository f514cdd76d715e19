"""Theorems and stated properties on problems with a known optimum: th-fedar, th-fedhist; others in `theory_rates`.

Nothing here is a table of a paper: the problems, constants and sizes are ours.
Source: ours, docs/methods/experiments.md#theory-experiments
"""

from collections.abc import Callable, Mapping
from typing import Any

from unstale_papers.preset import Cell, Claim, Curve, Number, Preset, Source
from unstale_papers.presets import theory_rates
from unstale_papers.presets.theory_setup import (
    EQUAL_CLIENTS,
    FIRST,
    LOGISTIC,
    PRECISION,
    PROBLEM,
    QUADRATIC,
    settings_of,
)

# --- FedAR ---

_ABSENT = """\
# In each round client i is available with probability p_i, drawn once between 0.1 and 1.
groups:
  - name: everyone
    toxics:
      - {type: dropout, p_min: 0.1}
"""
_FOREVER = {"cutoff": "none"}
_ABSENCE_METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedVARP": ("fedvarp", {}),
    "MIFA": ("mifa", {"init": "force"}),
    "FedAR, rho 0": ("fedar", {"rho": 0.0, **_FOREVER}),
    "FedAR, rho 0.02": ("fedar", {"rho": 0.02, **_FOREVER}),
    "FedAR, rho 0.1": ("fedar", {"rho": 0.1, **_FOREVER}),
    "FedAR, rho 0.1, cutoff": ("fedar", {"rho": 0.1, "cutoff": "convex"}),
}
_CONSTANT, _DECAYING = "constant", "4/(mu(t+a))"
_STEPS: Mapping[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    ("quadratic", _CONSTANT): (QUADRATIC, {"learning_rate": 0.04}),
    ("quadratic", _DECAYING): (
        QUADRATIC,
        {"learning_rate": 0.08, "schedule": {"name": "inverse", "period": 100}},  # mu 0.5, a = 100
    ),
    ("logistic", _DECAYING): (
        LOGISTIC,
        {"learning_rate": 0.4, "schedule": {"name": "inverse", "period": 100}},  # mu 0.1, a = 100
    ),
}
"""Options and training by objective and step."""

_COMPARED = {
    ("quadratic", _DECAYING): tuple(_ABSENCE_METHODS),
    ("quadratic", _CONSTANT): ("FedAvg", "MIFA", "FedAR, rho 0", "FedAR, rho 0.02", "FedAR, rho 0.1"),
    ("logistic", _DECAYING): ("FedAvg", "MIFA", "FedAR, rho 0", "FedAR, rho 0.1"),
}
"""Methods by objective and step."""
_PAPER_STEPS = {"quadratic": ("FedAR, rho 0.1", "FedAR, rho 0.1, cutoff"), "logistic": ("FedAR, rho 0.1",)}
"""Methods with the paper's rho, by objective."""
_NEARER = (
    ("FedAR with rho 0.1 ends nearer to the optimum than FedAvg.", "FedAR, rho 0.1", "FedAvg", 1.0),
    ("Ours: MIFA ends at least 1,000 times nearer than FedAR with rho 0.1.", "MIFA", "FedAR, rho 0.1", 1000.0),
    (
        "Ours: the squared distance grows with the square of rho: with 0.1 it is at least 15 times that with 0.02.",
        "FedAR, rho 0.02",
        "FedAR, rho 0.1",
        15.0,
    ),
)
"""Claims on the squared distance: text, nearer and farther method, least factor."""


def th_fedar() -> Preset:
    """The fixed point of FedAR and its baselines while clients are absent."""

    def one(objective: str, step: str, method: str) -> Cell:
        policy, chosen = _ABSENCE_METHODS[method]
        options, training = _STEPS[objective, step]
        return Cell(
            labels={"objective": objective, "step": step, "method": method},
            settings=settings_of(policy, chosen, training, clients=10, rounds=800, trigger={"name": "sync", "k": None}),
            measurement="fixed point",
            options=options,
            in_rounds=() if step == _CONSTANT else ("training.schedule.period",),
            scenario=_ABSENT,
        )

    distance, order, unexplained = "squared distance", "order in T", "unexplained share"
    return Preset(
        name="th-fedar",
        paper="FedAR",
        item="Theorem 1",
        title="Distance to the optimum while clients are absent, on problems with a known optimum",
        cells=tuple(one(*at, method) for at, methods in _COMPARED.items() for method in methods),
        measures=(distance, "predicted squared distance", unexplained, order),
        rows=("objective", "step", "method"),
        columns=(),
        sources=(
            Source(
                key="theorem",
                value="with convex objectives the distance to the optimum falls as 1/T",
                tag="paper",
                why="The order, as the paper is cited; its constants are not compared.",
            ),
            Source(
                key="step 4/(mu(t+a))", value="mu 0.5 (quadratic), 0.1 (logistic); a 100", tag="paper", why="a is ours."
            ),
            Source(key="step constant", value="0.04", tag="[P]"),
            Source(key="clients and rounds", value="10 and 800", tag="[P]"),
            Source(key="availability", value="p_i between 0.1 and 1, drawn once", tag="paper"),
            Source(key="policy.settings.rho", value="0.1; also 0 and 0.02", tag="paper", why="0 and 0.02 are ours."),
            Source(
                key="cutoff",
                value="none; with `cutoff` t0 + t/b with t0 10 and b 10",
                tag="[P]",
                why="The theorem has t0 + t/b without values. Without it, rho alone moves the fixed point.",
            ),
            Source(key="parameters", value="10", tag="[P]"),
            PROBLEM,
            Source(
                key="objective logistic",
                value="40 examples of each client, l2 weight 0.1",
                tag="[P]",
                why="Each client labels random inputs by its own b_i. The optimum is of Newton's method, to a gradient "
                "of 1e-12.",
            ),
            FIRST,
            PRECISION,
        ),
        curves=(Curve(title="Squared distance to the optimum", shows=distance, line="method"),),
        claims=(
            *(
                Claim(
                    text=f"With steps 4/(mu(t+a)) {method} approaches the optimum of the {objective} problem as 1/T: "
                    "the order of the squared distance in T is at most -0.9.",
                    measure=order,
                    better={"objective": objective, "step": _DECAYING, "method": method},
                    level=-0.9,
                )
                for objective, methods in _PAPER_STEPS.items()
                for method in methods
            ),
            *(
                Claim(
                    text=f"Ours: {method} reaches the optimum with every objective and step: the squared distance "
                    "ends below 1e-9.",
                    measure=distance,
                    better={"method": method},
                    level=1e-9,
                )
                for method in ("MIFA", "FedAR, rho 0")
            ),
            *(
                Claim(
                    text=text,
                    measure=distance,
                    better={"method": better},
                    worse={"method": worse},
                    at_least=at_least,
                    as_ratio=True,
                )
                for text, better, worse, at_least in _NEARER
            ),
            *(
                Claim(
                    text=f"Ours: the mean weights of {method} predict where it ends; with decaying steps less than a "
                    "tenth of the squared distance is left unexplained.",
                    measure=unexplained,
                    better={"step": _DECAYING, "method": method},
                    level=0.1,
                )
                for method in ("FedAR, rho 0.1", "FedAvg")
            ),
        ),
        missing=("The constants of the bound: they are not in our sources.",),
    )


# --- FedHist ---

_TIMES = {
    "exponential": "{distribution: exponential, mean_s: 1}",
    "constant": "{distribution: uniform, low_s: 1, high_s: 1.001}",
    "lognormal": "{distribution: lognormal, median_s: 1, sigma: 1}",
    "Pareto, shape 1.5": "{distribution: pareto, least_s: 1, shape: 1.5}",
    "Pareto, shape 0.8": "{distribution: pareto, least_s: 1, shape: 0.8}",
}
_TASKS = """\
# Times of tasks, drawn for each: {times}.
groups:
  - name: everyone
    device:
      task: {task}
"""
_RATIOS = (5, 10, 20, 40)


def th_fedhist() -> Preset:
    """The mean staleness by N/K and the distribution of task times."""
    per_round = 4
    staleness, ratio, first = "mean staleness", "mean staleness over N/K", "first cycle over N/K"

    def one(times: str, level: int) -> Cell:
        return Cell(
            labels={"N/K": str(level), "times": times},
            settings=settings_of(
                "fedhist",
                {},
                {"learning_rate": 0.01},
                clients=per_round * level,
                rounds=40 * level,
                trigger={"name": "k-async", "k": per_round},
            ),
            measurement="mean staleness",
            options={**QUADRATIC, **EQUAL_CLIENTS},
            scenario=_TASKS.format(times=times, task=_TIMES[times]),
            published={staleness: Number(level / 2, f"> {level / 2:g}")},
        )

    return Preset(
        name="th-fedhist",
        paper="FedHist",
        item="bound of the mean staleness",
        title="Mean staleness in the K-asynchronous loop beside N/(2K) and N/K",
        cells=tuple(one(times, level) for level in _RATIOS for times in _TIMES),
        measures=(staleness, ratio, first),
        rows=("N/K",),
        columns=("times",),
        sources=(
            Source(key="bound", value="the mean staleness is at least N/(2K)", tag="paper"),
            Source(
                key="N/K",
                value="the mean of s + 1 in the steady state",
                tag="[M]",
                why="Little's law: N updates are under way and K leave in each round, whatever the times are, if "
                "their mean is finite.",
            ),
            Source(key="trigger.k", value="4", tag="[P]"),
            Source(key="rounds", value="40 N/K, of which the first 10 N/K do not count", tag="[P]"),
            Source(
                key="Pareto, shape 0.8",
                value="times with an infinite mean",
                tag="[P]",
                why="Updates under way are ever older, and the aggregated ones are of the other clients: no steady "
                "state.",
            ),
            Source(key="objective", value="one quadratic", tag="[P]", why="Staleness does not depend on it."),
            PRECISION,
        ),
        method="times",
        curves=(
            Curve(
                title="Mean staleness of all rounds so far, over N/K",
                shows="mean staleness so far, over N/K",
                target=0.5,
                line="times",
            ),
        ),
        claims=(
            *(
                Claim(
                    text=f"The mean staleness is at least N/(2K) with {times} times.",
                    measure=ratio,
                    better={"times": times},
                    level=0.5,
                )
                for times in _TIMES
            ),
            Claim(
                text="Ours: the mean staleness is at least 95 % of N/K with exponential times.",
                measure=ratio,
                better={"times": "exponential"},
                level=0.95,
            ),
            Claim(
                text="Ours: with exponential times and N/K 40, N/(2K) is no bound of the first N/K rounds, whose mean "
                "is about N/(eK).",
                measure=first,
                worse={"times": "exponential", "N/K": "40"},
                level=0.5,
            ),
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {"th-fedar": th_fedar, "th-fedhist": th_fedhist, **theory_rates.PRESETS}
