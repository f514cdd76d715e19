"""FedAR's tables and figures: ar-f1 to ar-f5.

Cells that presets share come from one function, so their settings are equal.
Source: FedAR (Jiang et al., 2024), docs/methods/experiments.md#fedar-experiments
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from unstale_papers.preset import Cell, Claim, Curve, Labels, Number, Preset, Source, nothing
from unstale_papers.presets.fedar_setup import (
    ACCURACY,
    AHEAD,
    AUTOCORRELATED,
    BASELINES,
    CLIENT_MEASURES,
    FEDAR,
    HARD,
    LEVELS,
    LOSS,
    LOSS_SOURCE,
    MEMORY,
    METHODS,
    MILD,
    NORM,
    OF_CLIENTS,
    OVER_SEEDS,
    P_VALUE,
    P_VALUES,
    S_50,
    SETUP,
    TASKS,
    WAITS,
    WITHOUT_S,
    cell,
    settings_of,
)


def ar_f1() -> Preset:
    """Fig. 1: the worth of an old update."""
    task = replace(TASKS["CIFAR-10"], rounds=9, every=1)
    share = "Shapley share"
    settings = settings_of(task, 5, "mifa", {"init": "force"}, None)
    longer = settings.training.model_copy(update={"steps": None, "epochs": 5})
    trained = {"5 steps": settings, "5 epochs": settings.model_copy(update={"training": longer})}
    return Preset(
        name="ar-f1",
        paper="FedAR",
        item="Fig. 1",
        title="What the update of a client is worth that is silent in the last rounds",
        cells=tuple(
            Cell(
                labels={"local": local, "silent rounds": str(silent)},
                settings=chosen,
                measurement="Shapley",
                options={"silent": silent},
            )
            for local, chosen in trained.items()
            for silent in range(7)
        ),
        measures=(share, "Shapley value"),
        rows=("silent rounds",),
        columns=("local",),
        sources=(
            Source(key="clients", value="5, of which client 0 falls silent", tag="paper"),
            Source(key="rounds", value="9", tag="paper"),
            Source(
                key="worth of some clients",
                value="test accuracy of the last model moved by the mean of their last updates",
                tag="[M]",
                why="An empty set moves nothing. The share is of all clients' values without their signs, because "
                "their sum may be negative.",
            ),
            Source(key="partition", value="classes: two for each client", tag="[P]", why="Not stated."),
            Source(
                key="training",
                value="batches of 64, rate 0.1, weight decay 0.001",
                tag="[P]",
                why="Not stated for it: that of the other figures.",
            ),
            Source(
                key="local 5 steps",
                value="as in the other figures",
                tag="[P]",
                why="Not stated for it. Nine rounds of them leave a model that has hardly begun to learn, and its "
                "accuracies nearly to chance.",
            ),
            Source(key="local 5 epochs", value="what MIFA's code takes for 5 local steps", tag="R:MIFA"),
        ),
        method="silent rounds",
        claims=(
            Claim(
                text="After 6 silent rounds the last update of a client is worth less than after none.",
                measure=share,
                better={"silent rounds": "0"},
                worse={"silent rounds": "6"},
            ),
            Claim(
                text="After 6 silent rounds the last update of a client is worth less than nothing.",
                measure=share,
                worse={"silent rounds": "6"},
                level=0.0,
            ),
        ),
        missing=("The shares themselves are not printed, but that the one after 6 rounds is negative.",),
    )


def _best(text: str, measure: str, labels: Labels, **by: Any) -> Claim:
    """The claim that FedAR is better than all other methods of the paper among some cells; with at_least by that lead
    over each, with level that only FedAR reaches it.
    """
    better, waits = {**labels, "method": "FedAR"}, {"method": WAITS}
    each = "at_least" in by
    return Claim(text=text, measure=measure, better=better, worse=labels, each=each, without=waits, **by)


def ar_f2() -> Preset:
    """Fig. 2 and Table 2: all methods, by data and availability."""

    def one(data: str, p_min: str, method: str) -> Cell:
        published = dict(LEVELS.get((data, p_min), {})) if method == "FedAR" else {}
        if (data, p_min, method) in P_VALUES:
            published[P_VALUE] = P_VALUES[data, p_min, method]
        labels = {"data": data, "p_min": p_min, "method": method}
        return cell(labels, data, method, p_min, published=published)

    hard, mild = ({"data": "CIFAR-10", "p_min": p_min} for p_min in (HARD, MILD))
    numbers = {"data": "SVHN", "p_min": HARD}
    return Preset(
        name="ar-f2",
        paper="FedAR",
        item="Fig. 2, Table 2",
        title="Accuracy and training loss while clients come and go",
        cells=tuple(one(data, p_min, method) for data in TASKS for p_min in (HARD, MILD) for method in METHODS),
        measures=(ACCURACY, LOSS, P_VALUE, OVER_SEEDS, AHEAD),
        rows=("data", "p_min"),
        columns=("method",),
        sources=(*SETUP, *FEDAR, *BASELINES, *S_50, NORM, MEMORY, LOSS_SOURCE),
        curves=(
            Curve(title="Training loss (Fig. 2)", shows=LOSS, line="method"),
            Curve(title="Test accuracy (Fig. 2)", shows="accuracy", line="method"),
        ),
        claims=(
            _best(
                "On CIFAR-10 with p_min 0.1 FedAR is more than 3 points above every baseline (44 % in print).",
                ACCURACY,
                hard,
                at_least=0.03,
            ),
            _best("On CIFAR-10 with p_min 0.1 FedAR has the lowest training loss (1.5 in print).", LOSS, hard),
            _best("On CIFAR-10 with p_min 0.5 FedAR is the most accurate (46 % in print).", ACCURACY, mild),
            _best("On SVHN with p_min 0.1 FedAR is the most accurate.", ACCURACY, numbers),
            _best("On SVHN with p_min 0.1 FedAR alone is above 70 %.", ACCURACY, numbers, level=0.7),
            _best("On SVHN with p_min 0.1 FedAR has the lowest training loss.", LOSS, numbers),
            _best("On SVHN with p_min 0.1 FedAR alone has a training loss below 1.", LOSS, numbers, level=1.0),
        ),
        missing=(
            "Fig. 2 has 46 % for FedAR on CIFAR-10 with p_min 0.5, Fig. 4 has 47 % for the same run.",
            "In the best case 75 % better accuracy and 50 % lower loss: against which baseline and where is not said.",
            "MNIST is in an appendix that was not at hand: what is computed here has nothing to be compared with.",
            AUTOCORRELATED,
        ),
    )


def _served(labels: Labels, method: str, availability: str) -> Cell:
    """A cell of Table 3, with randomly available clients. availability: `uniform` or `adversarial`."""
    published = OF_CLIENTS[method] if availability == "uniform" else nothing()
    return cell(labels, "CIFAR-10", method, HARD, by=availability, published=published)


def ar_t3() -> Preset:
    """Table 3 and Fig. 3: fairness of the model over clients."""
    everybody = Cell(
        labels={"availability": "independent", "method": "FedAvg"},
        settings=settings_of(TASKS["CIFAR-10"], 100, "fedavg", {}, None),
        options={"training_loss_every": TASKS["CIFAR-10"].loss_every},
        published=OF_CLIENTS["FedAvg"],
    )
    kinds = {"independent": "uniform", "by smallest class": "adversarial"}
    independent = {"availability": "independent"}
    return Preset(
        name="ar-t3",
        paper="FedAR",
        item="Table 3, Fig. 3",
        title="Accuracy on the clients' own test examples, CIFAR-10, p_min 0.1",
        cells=(
            *(
                _served({"availability": label, "method": method}, method, by)
                for label, by in kinds.items()
                for method in ("FedAR", "MIFA", "FedVARP")
            ),
            everybody,
        ),
        measures=(*CLIENT_MEASURES, "client accuracy std", ACCURACY),
        rows=("availability", "method"),
        columns=(),
        sources=(
            Source(key="FedAvg", value="all clients are always there", tag="paper"),
            Source(
                key="clients' own test examples",
                value="shares of the test set, of the classes that the client holds",
                tag="[M]",
            ),
            Source(
                key="availability by smallest class",
                value="p_i = 0.1 + 0.9 c_i / 9",
                tag="R:MIFA",
                why="Not of the table: there absence goes with the labels, which is what makes a model unfair.",
            ),
            *SETUP,
            *FEDAR,
            *BASELINES[:2],
        ),
        curves=(Curve(title="Accuracy over clients (Fig. 3)", shows="client accuracy", line="method"),),
        claims=(
            Claim(
                text="FedAR serves clients better on average than MIFA, by 6.9 points.",
                measure="client accuracy mean",
                better={**independent, "method": "FedAR"},
                worse={**independent, "method": "MIFA"},
                at_least=6.9,
            ),
            Claim(
                text="FedAR serves them more evenly than FedVARP.",
                measure="client accuracy variance",
                better={**independent, "method": "FedAR"},
                worse={**independent, "method": "FedVARP"},
            ),
            *(
                Claim(
                    text=f"FedAR serves the worst tenth better than {other}.",
                    measure="client accuracy worst tenth",
                    better={**independent, "method": "FedAR"},
                    worse={**independent, "method": other},
                )
                for other in ("MIFA", "FedVARP")
            ),
        ),
        missing=(
            "That FedAR is as fair as FedAvg with everybody there: this is a likeness, not an order.",
            "A variance of 432.5 has a deviation of 20.9 over 100 clients, where FedVARP's row has 20.7; the other "
            "rows agree.",
        ),
    )


def ar_f4() -> Preset:
    """Fig. 4: by availability of clients."""
    probabilities = ("0.1", "0.2", "0.3", "0.4", "0.5")
    at_0_5 = Number(0.47, "47 %")

    def one(p_min: str, method: str) -> Cell:
        published: dict[str, Number] = {}
        if p_min == MILD:
            published[ACCURACY] = at_0_5 if method == "FedAR" else Number(0.45, "< 45 %")
        return cell({"p_min": p_min, "method": method}, "CIFAR-10", method, p_min, published=published)

    return Preset(
        name="ar-f4",
        paper="FedAR",
        item="Fig. 4",
        title="CIFAR-10 by how often clients are there",
        cells=tuple(one(p_min, method) for p_min in probabilities for method in WITHOUT_S),
        measures=(ACCURACY, LOSS),
        rows=("p_min",),
        columns=("method",),
        sources=(*SETUP, *FEDAR, *BASELINES, LOSS_SOURCE),
        curves=(
            Curve(title="Training loss (Fig. 4)", shows=LOSS, line="method"),
            Curve(title="Test accuracy (Fig. 4)", shows="accuracy", line="method"),
        ),
        claims=(
            *(
                _best(f"With p_min {p_min} FedAR is the most accurate.", ACCURACY, {"p_min": p_min})
                for p_min in probabilities
            ),
            _best(
                "With p_min 0.5 FedAR is 2 points above every other method (47 % in print, and less than 45 %).",
                ACCURACY,
                {"p_min": MILD},
                at_least=0.02,
            ),
            _best("With p_min 0.5 FedAR alone is above 45 %.", ACCURACY, {"p_min": MILD}, level=0.45),
        ),
        missing=("Fig. 4 has 47 % for FedAR with p_min 0.5, Fig. 2 has 46 % for the same run.",),
    )


def ar_f5() -> Preset:
    """Fig. 5: by number of clients."""
    numbers = (80, 90, 100, 110, 120)

    def one(clients: int, method: str) -> Cell:
        published: dict[str, Number] = {}
        if method == "FedAR":
            published[LOSS] = Number(1.55, "1.5 to 1.6")
            if clients == 110:
                published[ACCURACY] = Number(0.43, "43 %")
        elif method != "FedVARP" and clients == max(numbers):
            published[ACCURACY] = Number(0.4, "< 40 %")
        labels = {"clients": str(clients), "method": method}
        return cell(labels, "CIFAR-10", method, HARD, clients=clients, published=published)

    return Preset(
        name="ar-f5",
        paper="FedAR",
        item="Fig. 5",
        title="CIFAR-10 by how many clients there are, p_min 0.1",
        cells=tuple(one(clients, method) for clients in numbers for method in WITHOUT_S),
        measures=(ACCURACY, LOSS),
        rows=("clients",),
        columns=("method",),
        sources=(*SETUP[1:], *FEDAR, *BASELINES, LOSS_SOURCE),
        curves=(
            Curve(title="Training loss (Fig. 5)", shows=LOSS, line="method"),
            Curve(title="Test accuracy (Fig. 5)", shows="accuracy", line="method"),
        ),
        claims=(
            *(
                _best(f"With {clients} clients FedAR is the most accurate.", ACCURACY, {"clients": str(clients)})
                for clients in numbers
            ),
            *(
                Claim(
                    text=f"With 120 clients FedAR has 40 % or more, {method} less (in print 43 % or more).",
                    measure=ACCURACY,
                    better={"clients": "120", "method": "FedAR"},
                    worse={"clients": "120", "method": method},
                    level=0.4,
                )
                for method in WITHOUT_S
                if method not in ("FedAR", "FedVARP")
            ),
        ),
        missing=(
            "That 110 clients are FedAR's worst: the claim would need its other accuracies, which are not printed.",
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    "ar-f1": ar_f1,
    "ar-f2": ar_f2,
    "ar-t3": ar_t3,
    "ar-f4": ar_f4,
    "ar-f5": ar_f5,
}
