"""What FedAR's experiments have in common: tasks, methods, cells, printed numbers and where settings are from.

Source: algorithms.md 6.4; of the methods 2.1 to 2.3, 2.6, 2.12, 2.13 and 2.16; of data and availability 3.5 and 4.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstale.config.settings import Settings
from unstale_papers.preset import Cell, Labels, Number, Source, nothing

ACCURACY, LOSS, P_VALUE = "final accuracy", "training loss of all", "p against FedAR"
OVER_SEEDS, AHEAD = "p over seeds against FedAR", "ahead of FedAR"
WAITS = "FedAvg (S=50, waits)"
CLIENT_MEASURES = tuple(
    f"client accuracy {what}" for what in ("mean", "variance", "worst tenth", "best tenth")
)
HARD, MILD = "0.1", "0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned. every: rounds between evaluations. loss_every: evaluations between two of the loss over all
    training examples. schedule: training.schedule.name. cutoff: of FedAR."""

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
    "MNIST": Task(
        data="mnist",
        model="logreg",
        rounds=200,
        every=2,
        loss_every=5,
        schedule="inverse",
        cutoff="convex",
    ),
}

_S_50 = {"size": 50}
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAR": ("fedar", {"rho": 0.1, "psi_max": 2.0}),
    "MIFA": ("mifa", {"init": "force"}),
    "FedVARP": ("fedvarp", {}),
    "FedAvg-IS": ("fedavg-is", {}),
    "FedAvg (S=50)": ("fedavg-s", {**_S_50, "wait_for_selected": False}),
    WAITS: ("fedavg-s", {**_S_50, "wait_for_selected": True}),
    "Scaffold": ("scaffold", {}),
}
"""Policy and its settings. Scaffold has its method in the local training of that name, too."""

WITHOUT_S = tuple(method for method in METHODS if "S=50" not in method)
"""Those of Fig. 4 and 5."""

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
    """Of availability; None where a ready one says it."""
    if not everybody_first and (p_min, by) in _READY:
        return None
    text = _EVERYBODY_FIRST if everybody_first else _SCENARIO
    said = "" if by == "uniform" else f", by: {by}"
    return text.format(how=_HOW[by].format(p_min=p_min), p_min=p_min, by=said)


def settings_of(
    task: Task, clients: int, policy: str, chosen: Mapping[str, Any], scenario: str | None
) -> Settings:
    """Of a run. chosen: settings of the policy. scenario: a ready one; None for everybody always there."""
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
    """One of a method of METHODS on a task of TASKS. by: how p_i is made from p_min.

    For MIFA all clients are there in the first round, as FedAR's paper has it.
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


# --- what is printed ---

_P_VALUES = """
CIFAR-10 0.1 1.15e-163 1.15e-194 1.87e-194 1.53e-110 4.36e-180
CIFAR-10 0.5 0.0       0.0       1.38e-246 3.46e-316 2.02e-285
SVHN     0.1 0.00029   1.49e-54  5.72e-35  1.63e-60  4.77e-45
SVHN     0.5 1.34e-52  5.91e-111 1.71e-81  2.25e-77  1.96e-116
"""
"""Table 2: data, p_min, then p against FedVARP, MIFA, Scaffold, FedAvg (S=50) and FedAvg-IS."""
_P_COLUMNS = ("FedVARP", "MIFA", "Scaffold", "FedAvg (S=50)", "FedAvg-IS")

_CLIENTS = """
FedAR   40.9±18.1 325   20.8±4.5 67.7±8.7
MIFA    34.0±13.6 182.5 19.7±4.2 53.8±8.8
FedVARP 41.3±20.7 432.5 19.4±2.6 73.9±11.6
FedAvg  41.0±18.0 321.6 21.2±4.3 69.5±12.6
"""
"""Table 3: method, then mean ± std, variance, worst and best tenth ± std of clients' accuracies, percentage points."""

LEVELS: Mapping[tuple[str, str], Mapping[str, Number]] = {
    ("CIFAR-10", HARD): {ACCURACY: Number(0.44, "44 %"), LOSS: Number(1.5, "1.5")},
    ("CIFAR-10", MILD): {ACCURACY: Number(0.46, "46 %")},
    ("SVHN", HARD): {ACCURACY: Number(0.7, "> 70 %"), LOSS: Number(1.0, "< 1")},
    ("SVHN", MILD): {ACCURACY: Number(0.7, "about 70 %")},
}
"""Of FedAR in the text on Fig. 2."""


def _p_values() -> Mapping[tuple[str, str, str], Number]:
    """By data, p_min and method."""
    found = {}
    for line in _P_VALUES.split("\n")[1:-1]:
        data, p_min, *printed = line.split()
        for method, text in zip(_P_COLUMNS, printed, strict=True):
            found[data, p_min, method] = Number(float(text), text)
    return found


def _of_clients() -> Mapping[str, Mapping[str, Number]]:
    """By method."""
    return {
        method: {
            measure: Number(float(text.partition("±")[0]), text.replace("±", " ± "))
            for measure, text in zip(CLIENT_MEASURES, printed, strict=True)
        }
        for method, *printed in (line.split() for line in _CLIENTS.split("\n")[1:-1])
    }


P_VALUES, OF_CLIENTS = _p_values(), _of_clients()


# --- where settings are from ---

SETUP = (
    Source(key="clients", value="100", tag="paper"),
    Source(key="partition", value="classes: two for each client, equally many examples", tag="paper"),
    Source(key="training.learning_rate", value="0.1", tag="paper"),
    Source(
        key="training.schedule",
        value="constant for networks, 1 / (t + 1) for logistic regression",
        tag="[M]",
        why="The paper gives the first rate only. MIFA's code has 1 / (t + 1), which would stop a network after a few "
        "rounds; the theory has a constant for what is not convex.",
    ),
    Source(
        key="training.steps",
        value="5 mini-batches",
        tag="paper",
        why="MIFA's code, whose defaults are these settings, takes five epochs instead.",
    ),
    Source(key="training.batch_size", value="64", tag="paper"),
    Source(key="training.weight_decay", value="0.001", tag="paper"),
    Source(
        key="rounds",
        value="1000 for CIFAR-10, 200 for SVHN and MNIST",
        tag="[P]",
        why="Not stated. A p-value of 1e-316 takes hundreds of rounds.",
    ),
    Source(
        key="availability",
        value="p_i from U(p_min, 1) once, then each round by chance",
        tag="[M]",
        why="The paper says \"independent, between p_min and 1\". Scripts of MIFA's code make p_i from the client's "
        "smallest class.",
    ),
    Source(key="augmentation", value="none", tag="[P]", why="Not stated."),
)
FEDAR = (
    Source(key="policy.settings.rho", value="0.1, of fedar", tag="paper"),
    Source(key="policy.settings.psi_max", value="2, of fedar", tag="paper"),
    Source(
        key="policy.settings.cutoff",
        value="2 max(sqrt t, 5) for networks, 10 + t / 10 for logistic regression",
        tag="[M]",
        why="The paper gives no value; the constant of its theory would forget everybody at once. Both begin at ten "
        "rounds.",
    ),
    Source(
        key="N_t of fedar",
        value="clients that were seen and still count",
        tag="[M]",
        why="Algorithm 1 takes one off for every client whose psi is 0, also those never seen, so that it could "
        "come to 0 or less.",
    ),
)
NORM = Source(
    key="model.norm",
    value="group, of resnet18",
    tag="[M]",
    why="Policies that remember updates remember no statistics of batches.",
)
MEMORY = Source(
    key="memory",
    value="4.5 GB for FedAR, MIFA, FedVARP and Scaffold with resnet18",
    tag="[M]",
    why="One vector of 11,173,962 numbers for each client, on the host.",
)
BASELINES = (
    Source(
        key="policy.settings.init",
        value="force, of mifa: the first round has an update of everybody",
        tag="paper",
        why="MIFA's code waits until everybody was there once, and then has all train again.",
    ),
    Source(
        key="availability of MIFA",
        value="all clients are there in the first round",
        tag="[M]",
        why="The paper has all clients answer in the first round. Otherwise rounds would pass without a step until "
        "each was there once, 2 to 20 % of a run. From the second round on it is as for all other methods.",
    ),
    Source(
        key="FedAvg-IS",
        value="an update is divided by p_i",
        tag="[M]",
        why='The paper says "weighted by availability probability"; to multiply would be biased. The server is told '
        "the true p_i, as in MIFA's code.",
    ),
)
S_50 = (
    Source(
        key="FedAvg (S=50)",
        value="50 of those who are there, or all if they are fewer",
        tag="[M]",
        why="The paper takes at most half of the available clients, and 50 at most.",
    ),
    Source(
        key=WAITS,
        value="50 of all clients, and rounds pass until each has been there",
        tag="R:MIFA",
        why="It would explain how far behind this baseline is in print. Table 2 is set beside the other one, and "
        "claims of all methods are not about it.",
    ),
)
LOSS_SOURCE = Source(key=LOSS, value="over the training examples of all clients", tag="paper")
AUTOCORRELATED = (
    "Table 2's p-values pair the rounds of a run, which are not independent, so that they are no evidence however "
    "small they are. The test over seeds is. Neither says who is ahead: the points ahead of FedAR do."
)
