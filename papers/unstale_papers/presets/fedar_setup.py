"""Shared parts of FedAR's experiments: tasks, methods, cells, printed numbers and sources of settings.

Source: FedAR (Jiang et al., 2024), docs/methods/experiments.md#fedar-experiments
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstale.config.settings import Settings
from unstale_papers import printed
from unstale_papers.preset import Cell, Labels, Number, nothing

_PAPER = printed.load("fedar")

ACCURACY, LOSS, P_VALUE = "final accuracy", "training loss of all", "p against FedAR"
OVER_SEEDS, AHEAD = "p over seeds against FedAR", "ahead of FedAR"
WAITS = "FedAvg (S=50, waits)"
CLIENT_MEASURES = tuple(f"client accuracy {what}" for what in ("mean", "variance", "worst tenth", "best tenth"))
HARD, MILD = "0.1", "0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A learning task. every: rounds between evaluations. loss_every: evaluations between two of the loss over all
    training examples. schedule: training.schedule.name. cutoff: of FedAR.
    """

    data: str
    model: str
    rounds: int
    every: int
    loss_every: int
    schedule: str = "constant"
    cutoff: str = "nonconvex"


TASKS = {
    "CIFAR-10": Task(data="cifar10", model="lenet_cifar", rounds=1000, every=10, loss_every=5),
    "SVHN": Task(data="svhn", model="resnet18", rounds=200, every=5, loss_every=4),
    "MNIST": Task(data="mnist", model="logreg", rounds=200, every=2, loss_every=5, schedule="inverse", cutoff="convex"),
}

_S_50 = {"size": 50}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAR": ("fedar", {"rho": 0.1, "psi_max": 2.0}),
    "MIFA": ("mifa", {"init": "force"}),
    "FedVARP": ("fedvarp", {}),
    "FedAvg-IS": ("fedavg-is", {}),
    "FedAvg (S=50)": ("fedavg-s", {**_S_50, "share": 0.5, "wait_for_selected": False}),
    WAITS: ("fedavg-s", {**_S_50, "wait_for_selected": True}),
    "Scaffold": ("scaffold", {}),
}
"""Policy and its settings. Scaffold also needs the local training of that name."""

WITHOUT_S = tuple(method for method in METHODS if "S=50" not in method)
"""Methods of Fig. 4 and 5."""

_READY = {("0.1", "uniform"): "availability-01", ("0.5", "uniform"): "availability-05"}
_READY["0.1", "adversarial"] = "adversarial-01"
_SCENARIO = """\
# In each round client i is there with probability p_i, {how}.
groups:
  - name: everyone
    toxics:
      - {{type: dropout, p_min: {p_min}{by}}}
"""
_EVERYBODY_FIRST = """\
# In the first round all clients are there; from then on client i is there in each round with probability p_i, {how}.
groups:
  - name: everyone
    toxics:
      - {{type: dropout, p_min: {p_min}{by}, everyone_before: 1}}
"""
_HOW = {
    "uniform": "drawn once between {p_min} and 1",
    "adversarial": "at least {p_min} and the higher the higher its smallest class",
}


def _scenario(p_min: str, by: str, *, everybody_first: bool) -> str | None:
    """The availability scenario; None where a ready one fits."""
    if not everybody_first and (p_min, by) in _READY:
        return None
    text = _EVERYBODY_FIRST if everybody_first else _SCENARIO
    suffix = "" if by == "uniform" else f", by: {by}"
    return text.format(how=_HOW[by].format(p_min=p_min), p_min=p_min, by=suffix)


def settings_of(task: Task, clients: int, policy: str, chosen: Mapping[str, Any], scenario: str | None) -> Settings:
    """Settings of a run. chosen: of the policy. scenario: a ready one; None for permanent availability."""
    return Settings(
        clients=clients,
        rounds=task.rounds,
        evaluate_every=task.every,
        model={"name": task.model},
        data={"name": task.data},
        partition={"name": "classes", "classes": 2},
        training={
            "name": "scaffold" if policy == "scaffold" else "sgd",
            "steps": 5,
            "batch_size": 64,
            "learning_rate": 0.1,
            "weight_decay": 0.001,
            "schedule": {"name": task.schedule},
        },
        policy={"name": policy, "settings": dict(chosen)},
        trigger={"name": "sync", "k": None},
        scenario={"name": scenario},
    )


def cell(
    labels: Labels,
    data: str,
    method: str,
    p_min: str,
    *,
    clients: int = 100,
    by: str = "uniform",
    published: Mapping[str, Number] | None = None,
) -> Cell:
    """A cell of a method of METHODS on a task of TASKS. by: the rule from p_min to p_i.

    For MIFA all clients are available in the first round, as in FedAR's paper.
    """
    task = TASKS[data]
    policy, chosen = METHODS[method]
    if policy == "fedar":
        chosen = {**chosen, "cutoff": task.cutoff}
    scenario = _scenario(p_min, by, everybody_first=policy == "mifa")
    ready = None if scenario else _READY[p_min, by]
    return Cell(
        labels=labels,
        settings=settings_of(task, clients, policy, chosen, ready),
        options={"training_loss_every": task.loss_every},
        scenario=scenario,
        published=published or nothing(),
    )


# --- printed numbers ---

LEVELS: Mapping[tuple[str, str], Mapping[str, Number]] = {
    ("CIFAR-10", HARD): {ACCURACY: Number(0.44, "44 %"), LOSS: Number(1.5, "1.5")},
    ("CIFAR-10", MILD): {ACCURACY: Number(0.46, "46 %")},
    ("SVHN", HARD): {ACCURACY: Number(0.7, "> 70 %"), LOSS: Number(1.0, "< 1")},
    ("SVHN", MILD): {ACCURACY: Number(0.7, "about 70 %")},
}
"""Numbers of FedAR in the text on Fig. 2."""


def _of_clients() -> Mapping[str, Mapping[str, Number]]:
    """Published numbers by method."""
    found: dict[str, dict[str, Number]] = {}
    for (method,), (measure,), text in _PAPER.tables["clients"].cells():
        found.setdefault(method, {})[measure] = Number(printed.leading_number(text), text.replace("±", " ± "))
    return found


P_VALUES = {(*row, method): Number(float(text), text) for row, (method,), text in _PAPER.tables["p_values"].cells()}
"""Published numbers by data, p_min and method."""

OF_CLIENTS = _of_clients()


# --- sources of settings ---

SETUP = _PAPER.sources("setup")
FEDAR = _PAPER.sources("fedar")
NORM = _PAPER.source("norm")
MEMORY = _PAPER.source("memory")
BASELINES = _PAPER.sources("baselines")
S_50 = _PAPER.sources("s_50")
LOSS_SOURCE = _PAPER.source("loss_source")
AUTOCORRELATED = (
    "Table 2's p-values pair the rounds of a run, which are not independent, so that they are no evidence however "
    "small they are. The test over seeds is. Neither says who is ahead: the points ahead of FedAR do."
)
