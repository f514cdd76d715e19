"""The experiment of the policy guide: guide-digits, guide-mnist, guide-cifar10, guide-regression, guide-text.

Not of a paper: one preset for each task, with the policies of `METHODS` at all conditions of `AXES`. A policy has the
learning rates that a search found for the task and the staleness (guide-rates.yaml), and its defaults else.
Source: docs/policy-guide.md
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from unstale.config.settings import Settings
from unstale_papers.preset import GUIDE, Cell, Preset, Source

METHOD, STALENESS = "method", "staleness"
RATE, MULTIPLIER, ALPHA = "training.learning_rate", "policy.server_multiplier", "policy.settings.alpha"
LADDERS: Mapping[str, tuple[float, ...]] = {
    RATE: (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    MULTIPLIER: (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    ALPHA: (0.002, 0.006, 0.02, 0.05, 0.2, 0.6, 1.0),
}
"""All values that a search can reach, by key."""
RATES_FILE = Path(__file__).parent / "guide-rates.yaml"

CLIENTS = 150
UPDATES_OF_A_ROUND = {"low": 30, "high": 3}
"""K by staleness: N/K is 5 and 50, the mean of s + 1."""

AXES: Mapping[str, tuple[str, ...]] = {
    "staleness": tuple(UPDATES_OF_A_ROUND),
    "heterogeneity": ("iid", "non-iid"),
    "absence": ("none", "half"),
}
"""Conditions: one label of each axis."""

HALF_ABSENT = """\
# Tasks take exponential times of mean 10 s. Half of the clients are away half of the time, 30 s on average.
groups:
  - name: everyone
    device:
      task: {distribution: exponential, mean_s: 10}
  - name: sometimes-away
    clients: {share: 0.5}
    toxics:
      - {type: dropout, on_s: 30, off_s: 30}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A learning task. data, model, objective: names. measure: of its table. skewed: partition of `non-iid`. updates:
    of all clients in a run, at every staleness. share: data.share. rates: learning rates that a search begins with.
    """

    title: str
    data: str
    model: str
    rates: tuple[float, ...]
    updates: int
    steps: int
    batch_size: int
    share: float = 1.0
    objective: str = "classification"
    measure: str = "final accuracy"
    skewed: Mapping[str, Any] = field(default_factory=lambda: {"name": "dirichlet", "alpha": 0.1, "min_examples": 2})


_CODE = "unstale_papers.guide.tasks"
_LENET = (0.03, 0.1, 0.3)
TASKS: Mapping[str, Task] = {
    "digits": Task(
        title="digits", data="digits", model="digits_cnn", rates=(0.1, 0.3, 1.0), updates=750, steps=2, batch_size=8
    ),
    "mnist": Task(
        title="MNIST", data="mnist", model="lenet_28", rates=_LENET, updates=1500, steps=3, batch_size=16, share=0.2
    ),
    "cifar10": Task(
        title="CIFAR-10",
        data="cifar10",
        model="lenet_cifar",
        rates=_LENET,
        updates=1200,
        steps=3,
        batch_size=16,
        share=0.2,
    ),
    "regression": Task(
        title="regression",
        data=f"{_CODE}:friedman",
        model=f"{_CODE}:regressor",
        objective="regression",
        measure="final mae",
        rates=(0.01, 0.03, 0.1),
        updates=600,
        steps=2,
        batch_size=8,
    ),
    "text": Task(
        title="language model",
        data=f"{_CODE}:help_texts",
        model=f"{_CODE}:NextByte",
        objective="language-model",
        measure="final perplexity",
        rates=(0.1, 0.3, 1.0),
        updates=4500,
        steps=5,
        batch_size=16,
        skewed={"name": "natural"},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A policy with its settings. server: a key that sets the size of the server's step, and the values that a search
    begins with.
    """

    policy: str
    settings: Mapping[str, Any]
    server: tuple[str, tuple[float, ...]] = (MULTIPLIER, (0.1, 0.3, 1.0))


METHODS: Mapping[str, Method] = {
    "FedAvg": Method(policy="fedavg", settings={"weighting": "uniform"}),
    "FedAsync": Method(policy="fedasync", settings={"alpha": 0.6}, server=(ALPHA, (0.02, 0.05, 0.2))),
    "FedBuff": Method(policy="fedbuff", settings={}),
    "DynSGD": Method(policy="dynsgd", settings={}),
    "REFL": Method(policy="refl", settings={}),
    "WKAFL": Method(policy="wkafl", settings={}),
    "FedHist": Method(policy="fedhist", settings={}),
    "FedVARP": Method(policy="fedvarp", settings={}),
    "FedAR": Method(policy="fedar", settings={}),
}
"""Policies that work with the K-asynchronous loop, each for another treatment of late or absent clients."""

Rates = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Values by key, of a policy at a staleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The rates that searches found for a task.

    commands: the searches. rates: by staleness and method. searched: all values that were searched, in the same order.
    """

    commands: tuple[str, ...] = ()
    rates: Rates = field(default_factory=dict)
    searched: Mapping[str, Mapping[str, Mapping[str, tuple[float, ...]]]] = field(default_factory=dict)


@cache
def found_rates() -> Mapping[str, Found]:
    """The rates of guide-rates.yaml, by task. A task that was not searched is absent."""
    text = RATES_FILE.read_text(encoding="utf-8")
    return {
        task: Found(
            commands=tuple(found["commands"]),
            rates=found["rates"],
            searched={
                level: {method: {key: tuple(values) for key, values in grid.items()} for method, grid in grids.items()}
                for level, grids in found["searched"].items()
            },
        )
        for task, found in (yaml.safe_load(text) or {}).items()
    }


def start_grid(task: str, method: str) -> dict[str, tuple[float, ...]]:
    """The values that a search begins with, by key."""
    key, values = METHODS[method].server
    return {RATE: TASKS[task].rates, key: values}


def cell(task: str, method: str, condition: Mapping[str, str]) -> Cell:
    """A cell of a task of TASKS and a method of METHODS. condition: a label for each axis."""
    chosen, policy = TASKS[task], METHODS[method]
    per_round = UPDATES_OF_A_ROUND[condition["staleness"]]
    rounds = chosen.updates // per_round
    found = found_rates().get(task, Found()).rates.get(condition["staleness"], {}).get(method, {})
    settings = dict(policy.settings)
    if ALPHA in found:
        settings["alpha"] = found[ALPHA]
    is_present = condition["absence"] == "none"
    return Cell(
        labels={**condition, METHOD: method},
        settings=Settings(
            clients=CLIENTS,
            rounds=rounds,
            evaluate_every=max(1, rounds // 30),
            model={"name": chosen.model},
            data={"name": chosen.data, "share": chosen.share},
            objective={"name": chosen.objective},
            partition={"name": "iid"} if condition["heterogeneity"] == "iid" else dict(chosen.skewed),
            training={
                "steps": chosen.steps,
                "batch_size": chosen.batch_size,
                "learning_rate": found.get(RATE, chosen.rates[1]),
            },
            policy={"name": policy.policy, "settings": settings, "server_multiplier": found.get(MULTIPLIER, 1.0)},
            trigger={"name": "k-async", "k": per_round},
            scenario={"name": "exponential" if is_present else None},
        ),
        scenario=None if is_present else HALF_ABSENT,
    )


def conditions() -> list[dict[str, str]]:
    """Every combination of the axes' labels."""
    return [dict(zip(AXES, labels, strict=True)) for labels in product(*AXES.values())]


def preset(task: str) -> Preset:
    """The preset of a task."""
    chosen = TASKS[task]
    return Preset(
        name=f"guide-{task}",
        paper=GUIDE,
        item=chosen.title,
        title=f"Policies by staleness, heterogeneity and absence: {chosen.title}",
        cells=tuple(cell(task, method, condition) for condition in conditions() for method in METHODS),
        measures=(chosen.measure,),
        rows=tuple(AXES),
        columns=(METHOD,),
        sources=(*_SETUP, _partition(chosen), _rates(task)),
    )


PRESETS: dict[str, Callable[[], Preset]] = {f"guide-{task}": partial(preset, task) for task in TASKS}


_SETUP = (
    Source(key="clients", value=str(CLIENTS), tag="[P]", why="N/K is 5 or 50, and a round has three updates at least."),
    Source(
        key="staleness",
        value="K 30 (low) or 3 (high)",
        tag="[P]",
        why="The mean of s + 1 is N/K. A run has the same number of updates at both, so rounds are a tenth as many at "
        "the low one.",
    ),
    Source(key="absence", value="half of the clients, half of the time, 30 s on average", tag="[P]", why="A task takes "
           "10 s on average."),
    Source(key="policy.settings", value="defaults, with the searched rates", tag="[P]"),
)  # fmt: skip


def _partition(task: Task) -> Source:
    """The source of the axis heterogeneity."""
    chosen = task.skewed
    skewed = "natural: a passage of the texts each" if chosen["name"] == "natural" else f"dirichlet {chosen['alpha']}"
    return Source(key="heterogeneity", value=f"iid, or {skewed} (non-iid)", tag="[P]")


def _rates(task: str) -> Source:
    """The source of the learning rates."""
    found = found_rates().get(task)
    why = "Not searched: these are starting values, and no ranking follows from their results."
    if found is not None:
        why = f"By policy and staleness, on a validation split: {'; '.join(found.commands)}"
    return Source(key="learning rates", value="unstale_papers/presets/guide-rates.yaml", tag="[P]", why=why)
