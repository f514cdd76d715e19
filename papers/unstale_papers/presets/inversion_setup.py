"""What Wang and Gao's experiments have in common: tasks, methods, cells and where their settings are from.

Source: algorithms.md 6.3; of the methods 2.19 to 2.23; of data and staleness 3.3, 3.8, 3.9 and 4.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Labels, Number, Source, nothing

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
    """What is learned. label: the class of those who are late. staleness: rounds. variant: data.variant.
    one_class_each: partition 3.8, else 3.3 with alpha."""

    data: str = "mnist"
    model: str = "lenet_gi"
    label: int = 5
    rounds: int = 800
    staleness: int = STALENESS
    alpha: float = 0.1
    one_class_each: bool = False
    variant: Mapping[str, Any] = field(default_factory=nothing)

    @property
    def scenario(self) -> str:
        """Who is late, and how late."""
        label = self.label
        if self.one_class_each:
            who, clients = _FIRST.format(label=label), f"{{smallest_class: {label}}}"
        else:
            who, clients = _TOP.format(label=label), f"{{holding: {label}, top: 10}}"
        return _SCENARIO.format(who=who, clients=clients, rounds=self.staleness)

    def settings(self, policy: str, compensator: Mapping[str, Any]) -> Settings:
        """Of a run."""
        partition = _ONE_CLASS_EACH if self.one_class_each else {**_SHARES, "alpha": self.alpha}
        return Settings(
            clients=_CLIENTS,
            rounds=self.rounds,
            evaluate_every=1,  # 7.4 takes the mean of ten rounds: everybody's turn
            model={"name": self.model},
            data={"name": self.data, "variant": dict(self.variant)},
            partition=partition,
            training={"name": "sgd", "epochs": 5, "batch_size": 600, "learning_rate": 0.01},
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
    "preset": "paper",
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
"""Policy and compensator. `GI (ours)` is what `compensator.name auto` does."""

ALL = ("unstale", "GI", "GI (ours)", "direct", "weighted", "first order")
COMPARED = ("GI", "GI (ours)", "direct", "first order")
"""Those of the tables, and ours."""


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
    """One of a method of METHODS. changed: settings of its compensator that differ."""
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
    """As it is printed, without the sign."""
    return Number(float(text) / 100, f"{text} %")


# --- where settings are from ---

SETUP = (
    Source(key="clients", value="100", tag="paper"),
    Source(key="training.epochs", value="5", tag="paper"),
    Source(key="training.learning_rate", value="0.01", tag="paper"),
    Source(
        key="training.momentum",
        value="0",
        tag="R:GI",
        why="The paper has 0.5; the accuracies that it prints need the slow course of the released code.",
    ),
    Source(
        key="training.batch_size",
        value="600",
        tag="R:GI",
        why="Not stated. No client holds more, so each epoch is one step over all that it holds.",
    ),
    Source(
        key="selector",
        value="round-robin, 10 of 100",
        tag="R:GI",
        why="Not stated. A round is one of the paper's epochs.",
    ),
    Source(
        key="staleness",
        value="counted from the first round on",
        tag="[M]",
        why="The released code keeps one model too few, so that its 40 is 39. Before round 40 the late are on time.",
    ),
)
ROUNDS = Source(key="rounds", value="800", tag="R:GI", why="Not stated; in its tables 800 is the whole run.")
SHARES = (
    Source(
        key="partition",
        value="dirichlet-client, 450 examples each",
        tag="R:GI",
        why="The paper says Dirichlet, and not how many examples a client holds. Where a class runs out, clients get "
        "what is left; the released code would go on in the next class.",
    ),
    Source(
        key="who is late",
        value="the ten clients that hold the most of the affected class",
        tag="paper",
    ),
)
ALPHA = Source(
    key="partition.alpha",
    value="0.1",
    tag="[P]",
    why="Not stated. With it Table 3's 580 rounds at staleness 40 are those of Table 4.",
)
STALE_40 = Source(key="staleness", value="40", tag="[P]", why="Not stated for this one; 40 is its usual one.")
ONE_CLASS = Source(
    key="partition",
    value="blocks: one class a client, 600 examples each",
    tag="[M]",
    why="The paper gives each client one class. Classes of MNIST are of unlike size, so that a few clients hold two.",
)
CNN3 = Source(
    key="model.name",
    value="cnn3: two convolutions and one dense layer",
    tag="[M]",
    why="The layers are not published.",
)
INVERSION = (
    Source(key="inverted examples", value="half of what the client holds", tag="paper"),
    Source(
        key=ITERATIONS,
        value="15000",
        tag="paper",
        why="Of its cost tables. The released code has 40000, and 10000 for data that changes.",
    ),
    Source(
        key="optimiser of the inversion",
        value="Adam on signs, rate 1, down by ten at 3/8, 5/8 and 7/8; inputs in [-2, 2]",
        tag="R:GI",
    ),
    Source(
        key="loss of the inversion",
        value="soft cross-entropy",
        tag="[M]",
        why="What paper and library intend; the released code feeds raw labels to a binary cross-entropy.",
    ),
    Source(
        key="warm start",
        value="0.57 of the iterations",
        tag="paper",
        why="The 43 % saved of its Fig. 6. The released code never starts warm.",
    ),
    Source(
        key="compensator.settings.switch",
        value="matched: when later updates tell that the estimates are worse",
        tag="paper",
        why="The released code holds estimates against true updates, which no server has, and in one script the wrong "
        "way round.",
    ),
    Source(
        key="compensator.settings.smooth_rounds", value="20", tag="[M]", why="Its length is not published."
    ),
)
OURS = Source(
    key="GI (ours)",
    value="compensator auto with its defaults",
    tag="[P]",
    why="Not of the paper: at most 40 iterations with 32 examples, and it gives up where it does not help.",
)
WEIGHTED = Source(
    key="policy.settings.half_life",
    value="20, of weighted",
    tag="R:GI",
    why="The paper cites (e/2)^-tau, which at 40 is 5e-6; the released code has 2^(-tau/20).",
)
FIRST_ORDER = Source(key="compensator.settings.lambda_u", value="4, of first order", tag="R:GI")
BASELINES = (WEIGHTED, FIRST_ORDER)
VARIANT_SOURCES = (
    Source(key="data", value="MNIST as colour images of 32x32, replaced by SVHN", tag="R:GI"),
    Source(key="model.name", value="lenet_cifar", tag="R:GI", why="Not stated."),
    Source(key="affected class", value="5", tag="R:GI", why="Not stated."),
    Source(
        key="what is replaced",
        value="a random example of the client by one of SVHN of the same class",
        tag="[M]",
        why="So that its labels stay. The released code replaces them in order.",
    ),
    Source(
        key="partition.alpha",
        value="0.1",
        tag="[P]",
        why="The released code gives each client one class instead.",
    ),
    Source(
        key="test set",
        value="MNIST's and SVHN's together",
        tag="R:GI",
    ),
)
RELEASED = (
    "As released, the authors' scripts for fixed data never aggregate an estimate: it is overwritten by direct "
    "aggregation before the switch, and raw stale weights are averaged after it. What is computed here is the "
    "method of the text."
)
