"""Shared parts of Wang and Gao's experiments: tasks, methods, cells and sources of settings.

Source: Gradient inversion (Wang & Gao, 2023), docs/methods/experiments.md#gradient-inversion-experiments
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unstale.config.settings import Settings
from unstale_papers import printed
from unstale_papers.preset import Cell, Labels, Number, nothing

_PAPER = printed.load("inversion")

ITERATIONS = "compensator.settings.iterations"
CLASS_5, TIME = "final accuracy of class 5", "time to match"
PASSAGE = "first passage of class 5"
STALENESS = 40

_CLIENTS, _AT_A_TIME = 100, 10
_SHARES = {"name": "dirichlet-client", "alpha": 0.1, "budget": 450}
_ONE_CLASS_EACH = {"name": "blocks"}

_SCENARIO = """\
# {who} deliver in round t what they computed from the model of round t - {rounds}.
groups:
  - name: stale
    clients: {clients}
    stale_rounds: {rounds}
"""
_TOP = "The ten clients that hold the most of class {label}"
_FIRST = "The clients that hold class {label} and none before it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A learning task. label: the class of the late clients. staleness: rounds. variant: data.variant. share:
    data.share. one_class_each: partition 3.8, else 3.3 with alpha. epochs, learning_rate, momentum: of the clients.
    """

    data: str = "mnist"
    model: str = "lenet_gi"
    label: int = 5
    rounds: int = 800
    staleness: int = STALENESS
    alpha: float = 0.1
    one_class_each: bool = False
    variant: Mapping[str, Any] = field(default_factory=nothing)
    share: float = 1.0
    epochs: int = 5
    learning_rate: float = 0.01
    momentum: float = 0.0

    @property
    def scenario(self) -> str:
        """The scenario: late clients and their staleness."""
        label = self.label
        if self.one_class_each:
            who, clients = _FIRST.format(label=label), f"{{smallest_class: {label}}}"
        else:
            who, clients = _TOP.format(label=label), f"{{holding: {label}, top: 10}}"
        return _SCENARIO.format(who=who, clients=clients, rounds=self.staleness)

    def settings(self, policy: str, compensator: Mapping[str, Any]) -> Settings:
        """Settings of a run."""
        partition = _ONE_CLASS_EACH if self.one_class_each else {**_SHARES, "alpha": self.alpha}
        return Settings(
            clients=_CLIENTS,
            rounds=self.rounds,
            evaluate_every=1,  # 7.4 takes the mean of ten rounds, in which each client has a turn
            model={"name": self.model},
            data={"name": self.data, "variant": dict(self.variant), "share": self.share},
            partition=partition,
            training={
                "name": "sgd",
                "epochs": self.epochs,
                "batch_size": 600,
                "learning_rate": self.learning_rate,
                "momentum": self.momentum,
            },
            policy={"name": policy},
            compensator=compensator,
            trigger={"name": "sync", "k": None},
            selector={"name": "round-robin", "size": _AT_A_TIME},
        )


MNIST = Task()
SINGLE_CLASS = Task(model="cnn3", one_class_each=True)
CIFAR_10 = Task(data="cifar10", model="resnet8", label=2, rounds=1500)
VARIANT = Task(model="lenet_cifar", variant={"name": "svhn", "rate": 0.5})

PAPER = {
    "preset": "paper-sign-adam",
    "images_share": 0.5,
    "iterations": 15_000,
    "warm_start": True,
    "switch": "matched",
    "margin": 1.0,
    "window": 10,
    "smooth_rounds": 20,
}
_NONE = {"name": "none"}

METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "unstale": ("direct", {"name": "oracle"}),
    "GI": ("direct", {"name": "gradient-inversion", "settings": PAPER}),
    "GI (ours)": ("direct", {"name": "auto"}),
    "direct": ("direct", _NONE),
    "weighted": ("weighted", _NONE),
    "first order": ("direct", {"name": "first-order", "settings": {"strength": "constant", "lambda_u": 4.0}}),
}
"""Policy and compensator. `GI (ours)` is `compensator.name auto`."""

ALL = ("unstale", "GI", "GI (ours)", "direct", "weighted", "first order")
COMPARED = ("GI", "GI (ours)", "direct", "first order")
"""Methods of the tables, and ours."""


def cell(
    labels: Labels,
    task: Task,
    method: str,
    *,
    published: Mapping[str, Number] | None = None,
    changed: Mapping[str, Any] | None = None,
    measurement: str = "run",
    options: Mapping[str, Any] | None = None,
) -> Cell:
    """A cell of a method of METHODS. changed: differing settings of its compensator."""
    policy, compensator = METHODS[method]
    if changed is not None:
        compensator = {**compensator, "settings": {**compensator.get("settings", {}), **changed}}
    settings = task.settings(policy, compensator)
    chosen = settings.compensator.settings
    return Cell(
        labels=labels,
        settings=settings,
        measurement=measurement,
        options=options or nothing(),
        in_iterations=(ITERATIONS,) if "iterations" in chosen else (),
        scenario=task.scenario,
        published=published or nothing(),
    )


def percent(text: str) -> Number:
    """A number as printed, without the sign."""
    return Number(float(text) / 100, f"{text} %")


# --- sources of settings ---

SETUP = _PAPER.sources("setup")
ROUNDS = _PAPER.source("rounds")
SHARES = _PAPER.sources("shares")
ALPHA = _PAPER.source("alpha")
STALE_40 = _PAPER.source("stale_40")
ONE_CLASS = _PAPER.source("one_class")
CNN3 = _PAPER.source("cnn3")
INVERSION = _PAPER.sources("inversion")
OURS = _PAPER.source("ours")
WEIGHTED = _PAPER.source("weighted")
FIRST_ORDER = _PAPER.source("first_order")
BASELINES = (WEIGHTED, FIRST_ORDER)
VARIANT_SOURCES = _PAPER.sources("variant_sources")
RELEASED = (
    "As released, the authors' scripts for fixed data never aggregate an estimate: it is overwritten by direct "
    "aggregation before the switch, and raw stale weights are averaged after it. What is computed here is the "
    "method of the text."
)
