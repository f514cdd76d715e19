"""The oracles by policy name, the changes of the profile `reference`, and the test cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oracles.averages import (
    Direct,
    DynSgd,
    FedAsync,
    FedAvg,
    FedAvgAtMost,
    FedAvgIs,
    FedBuff,
    Refl,
    Sasgd,
    Scaffold,
    Twafl,
    Weighted,
)
from oracles.memories import FedAr, FedVarp, Gsgm, Mifa
from oracles.oracle import Oracle
from oracles.robust import CoordinateMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean
from oracles.similar import FedHist, Wkafl

ORACLES: dict[str, type[Oracle]] = {
    "coordinate-median": CoordinateMedian,
    "direct": Direct,
    "dynsgd": DynSgd,
    "fedar": FedAr,
    "fedasync": FedAsync,
    "fedavg": FedAvg,
    "fedavg-is": FedAvgIs,
    "fedavg-s": FedAvgAtMost,
    "fedbuff": FedBuff,
    "fedhist": FedHist,
    "fedprox": FedAvg,
    "fedvarp": FedVarp,
    "geometric-median": GeometricMedian,
    "gsgm": Gsgm,
    "krum": Krum,
    "mifa": Mifa,
    "moon": FedAvg,
    "multi-krum": MultiKrum,
    "refl": Refl,
    "sasgd": Sasgd,
    "scaffold": Scaffold,
    "trimmed-mean": TrimmedMean,
    "twafl": Twafl,
    "weighted": Weighted,
    "wkafl": Wkafl,
}

REFERENCE: dict[str, dict[str, Any]] = {
    "fedasync": {"b": 6, "hinge_plus_one": False},
    "fedavg-s": {"wait_for_selected": True},
    "fedbuff": {"staleness": "none"},
    "gsgm": {"released": True},
    "mifa": {"init": "wait"},
    "sasgd": {"divide_by_k": False},
    "twafl": {"weighting": "equal"},
    "wkafl": {"momentum": "aggregate", "rate_staleness": "one-based", "threshold": "strict"},
}
"""The choices of the released code."""


def oracle(name: str, *, profile: str = "paper", **settings: Any) -> Oracle:
    """The oracle of a policy in its first state; an explicit setting wins over the profile."""
    defaults = REFERENCE.get(name, {}) if profile == "reference" else {}
    return ORACLES[name](**{**defaults, **settings})


@dataclass(frozen=True)
class Case:
    """A policy under some settings."""

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "paper"

    def __str__(self) -> str:
        parts = [self.policy, *([self.profile] if self.profile != "paper" else [])]
        parts += [f"{key}={'[...]' if isinstance(value, list) else value}" for key, value in self.settings.items()]
        return " ".join(parts)


def _cases(name: str, *settings: Mapping[str, Any]) -> list[Case]:
    """The defaults, each of the settings, and the reference profile where it differs."""
    reference = [Case(name, profile="reference")] if name in REFERENCE else []
    return [Case(name), *(Case(name, each) for each in settings), *reference]


_PROBABILITIES = [0.5, 1.0, 0.75, 0.25, 0.125, 0.875, 0.625, 0.375, 0.9375]


def cases(clients: int) -> list[Case]:
    """Every policy with its main options, for 3 to 9 clients."""
    return [*_averages(clients), *_memories(), *_similar(), *_robust()]


def _averages(clients: int) -> list[Case]:
    return [
        *_cases("direct", {"stale_form": "model"}),
        *_cases("dynsgd", {"normalise": False}),
        *_cases(
            "fedasync",
            {"staleness": "constant", "alpha": 0.25},
            {"staleness": "polynomial", "exponent": 1.5},
            {"staleness": "hinge", "b": 2},
            {"staleness": "hinge", "b": 1, "a_h": 2.0, "hinge_plus_one": False},
        ),
        Case("fedasync", {"staleness": "hinge"}, profile="reference"),
        *_cases("fedavg", {"weighting": "samples"}),
        Case("fedavg-is", {"probabilities": 0.5}),
        Case("fedavg-is", {"probabilities": _PROBABILITIES[:clients]}),
        Case("fedavg-s", {"size": 1}),
        Case("fedavg-s", {"size": 3}),
        Case("fedavg-s", {"size": clients}),
        Case("fedavg-s", {"size": 2, "wait_for_selected": True}),
        Case("fedavg-s", {"size": 3, "share": 0.5}),
        Case("fedavg-s", {"size": 3}, profile="reference"),
        *_cases("fedbuff", {"staleness": "none"}),
        *_cases("fedprox", {"weighting": "samples"}),
        *_cases("moon", {"weighting": "samples"}),
        *_cases("refl", {"beta": 0.0}, {"beta": 1.0}),
        *_cases("sasgd"),
        *_cases("scaffold"),
        *_cases("twafl", {"normalise": False}, {"weighting": "equal"}, {"weighting": "equal", "normalise": False}),
        *_cases("weighted", {"half_life": 2.5}),
    ]


def _memories() -> list[Case]:
    return [
        *_cases(
            "fedar",
            {"cutoff": "convex"},
            {"cutoff": "none"},
            {"rho": 0.0, "cutoff": "none"},
            {"rho": 0.75, "psi_max": 1.5},
            {"cutoff": "convex", "t0": 0.5, "b": 4.0},
            {"cutoff": "nonconvex", "t0": 4.0, "c": 0.5},
        ),
        *_cases("fedvarp"),
        *_cases("gsgm", {"alpha": 0.9}, {"alpha": 0.9, "released": True}, {"alpha": 0.0}),
        *_cases("mifa", {"init": "zeros"}, {"init": "wait"}),
    ]


def _similar() -> list[Case]:
    return [
        *_cases(
            "fedhist",
            {"h": 3},
            {"h": 6, "alpha": 0.5, "utility_weight": 0.5, "gamma": 0.5, "similarity_min": 0.5},
            {"egs": False},
            {"haa": "staleness", "h": 2},
            {"haa": "off"},
            {"ina": False},
            {"ina_norms": "fused", "h": 4},
            {"compared_with": "later", "h": 2, "utility_weight": 0.5},
        ),
        *_cases(
            "wkafl",
            {"clip_bound": 1.0},
            {"stage_two_round": 3, "stage_two_bound": 0.75},
            {"stage_two_loss": 1.75, "stage_two_bound": 0.5, "clip_bound": 1.5},
            {"momentum": "aggregate", "alpha": 0.5},
            {"rate_staleness": "one-based", "gamma": 0.5},
            {"threshold": "strict", "similarity_min": 0.75},
            {"similarity_min": 0.9375, "beta": 20.0},
            {"zero_gradient": "similar"},
            {"no_gradient_selection": True, "clip_bound": 1.0, "gamma": 0.25},
            {"no_staleness": True, "gamma": 0.25},
            {"no_non_iidness": True, "clip_bound": 1.0},
        ),
    ]


def _robust() -> list[Case]:
    return [
        *_cases("coordinate-median"),
        *_cases("geometric-median", {"iterations": 10_000, "tolerance": 1e-12}),
        *_cases("krum", {"byzantine": 0}, {"byzantine": 2}),
        *_cases("multi-krum", {"byzantine": 2}, {"byzantine": 0, "selected": 2}),
        *_cases("trimmed-mean", {"trim": 0.0}, {"trim": 0.25}, {"trim": 0.4375}),
    ]
