"""A run under two policies, as a picture. Imported only when one is drawn: it needs matplotlib."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unstale.journal.replay import Point

STYLES = (("#0072b2", "-"), ("#d55e00", "--"))  # told apart by everybody: Okabe and Ito
DOTS_MAX = 40  # with more, they would hide the line
INCHES = (11.0, 4.6)
DOTS_PER_INCH = 150


def draw(points: Sequence[Point], names: tuple[str, str], file: Path) -> None:
    """Draw accuracy and loss over versions into a PNG file.

    names: of the policy that was recorded, and of the one that its updates were folded under. Raises OSError.
    """
    was, now = names
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(
        f"The same updates folded under two policies\nThe clients trained on the models of {was}", wrap=True
    )
    left, right = figure.subplots(1, 2, sharex=True)
    versions = [point.version for point in points]
    labels = (f"{was}, recorded", f"{now}, folded")
    accuracies = ([point.accuracy for point in points], [point.other_accuracy for point in points])
    losses = ([point.loss for point in points], [point.other_loss for point in points])
    _draw(left, versions, accuracies, labels, "test accuracy")
    left.set_ylim(0, 1.02)
    left.legend(loc="lower right", frameon=False)
    _draw(right, versions, losses, labels, "test loss, nats")
    right.set_ylim(bottom=0)
    right.legend(loc="upper right", frameon=False)
    figure.savefig(file, format="png")


def _draw(
    axes: Axes,
    versions: Sequence[int],
    curves: Sequence[Sequence[float]],
    labels: Sequence[str],
    what: str,
) -> None:
    marker = "o" if len(versions) <= DOTS_MAX else ""
    for values, label, (colour, line) in zip(curves, labels, STYLES, strict=True):
        shown = [value if isfinite(value) else float("nan") for value in values]  # where it diverged, a gap
        axes.plot(versions, shown, color=colour, linestyle=line, marker=marker, markersize=4, label=label)
    axes.set_xlabel("version")
    axes.set_ylabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
