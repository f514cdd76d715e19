"""gi-controls: gradient inversion where perfect estimates raise the accuracy of the late class.

Not of the paper. In its tables staleness costs little here, so that no estimate could gain much (gi-t3-perfect). Here
a client holds one class, and in a round all clients of the selection hold the same one.
Source: docs/methods/experiments.md#gradient-inversion-experiments
"""

from collections.abc import Callable

from unstale_papers.preset import Cell, Claim, Curve, Preset, Source
from unstale_papers.presets.inversion_setup import BASELINES, CLASS_5, INVERSION, ITERATIONS, OURS, SETUP, Task, cell

CONTROLS = Task(one_class_each=True, rounds=100, staleness=20, share=0.2, epochs=1, learning_rate=0.1)
NUMBERS = (50, 150)
"""Iterations of an inversion by the paper's method."""

OTHERS = ("unstale", "direct", "weighted", "first order", "GI (ours)")
GAIN = 0.03


def _cells() -> tuple[Cell, ...]:
    """A cell for each baseline, and for each number of iterations."""
    by_number = (cell({"method": f"GI {number}"}, CONTROLS, "GI", changed={"iterations": number}) for number in NUMBERS)
    return (*(cell({"method": method}, CONTROLS, method) for method in OTHERS), *by_number)


def _ahead(better: str, worse: str, text: str, at_least: float = 0.0) -> Claim:
    """A claim about the accuracy on the late class."""
    return Claim(text=text, measure=CLASS_5, better={"method": better}, worse={"method": worse}, at_least=at_least)


def gi_controls() -> Preset:
    """Estimates of late updates from perfect ones to none, on a class that only late clients hold."""
    most = f"GI {NUMBERS[-1]}"
    own = (
        Source(
            key="partition",
            value="blocks: one class a client, of a fifth of MNIST",
            tag="[P]",
            why="With this partition perfect estimates gain 3 points in each of three seeds, on a validation split "
            "(papers/results/gi-controls-perfect.md).",
        ),
        Source(key="who is late", value="the clients that hold class 5 and none before it", tag="paper"),
        Source(key="staleness", value="20 rounds of 100", tag="[P]"),
        Source(
            key="training.learning_rate",
            value="0.1, one local step",
            tag="[P]",
            why="Of 0.03, 0.1 and 0.3 the best one for direct aggregation on the same split. With one local step an "
            "iteration takes a fifth of the time.",
        ),
        Source(
            key=ITERATIONS, value=", ".join(f"{number:,}" for number in NUMBERS), tag="[P]", why="The paper has 15,000."
        ),
    )
    said = {source.key for source in own}
    return Preset(
        name="gi-controls",
        paper="gradient inversion",
        item="controls for Table 3",
        title="Gradient inversion where perfect estimates raise the accuracy of the late class",
        cells=_cells(),
        measures=(CLASS_5, "final accuracy", "E1", "E2", "E1 (cosine)", "E2 (cosine)"),
        rows=("method",),
        columns=(),
        sources=(
            *own,
            *(source for source in (*INVERSION, OURS, *BASELINES) if source.key not in said),
            *(source for source in SETUP if source.key not in {*said, "training.epochs"}),
        ),
        curves=(Curve(title="Accuracy on class 5", shows="class accuracy 5", line="method"),),
        claims=(
            _ahead("unstale", "direct", "With one class a client perfect estimates gain 3 points or more.", GAIN),
            _ahead(most, "direct", "With one class a client 150 iterations of inversion gain 3 points or more.", GAIN),
            _ahead("GI (ours)", "direct", "With one class a client our inversion gains 3 points or more.", GAIN),
            _ahead(most, "first order", "150 iterations of inversion are more accurate than first order."),
            _ahead(most, "weighted", "150 iterations of inversion are more accurate than weighing stale updates less."),
            _ahead(most, f"GI {NUMBERS[0]}", "150 iterations of inversion are more accurate than 50."),
            _ahead("unstale", most, "Perfect estimates are more accurate than 150 iterations of inversion."),
            _ahead("GI (ours)", most, "Our inversion of at most 40 iterations is more accurate than 150 of theirs."),
        ),
        missing=(
            "The paper has no such setting; its Table 3 has more rounds, steps and clients' data.",
            "15,000 iterations of an inversion, as in the paper.",
        ),
    )


PRESETS: dict[str, Callable[[], Preset]] = {"gi-controls": gi_controls}
