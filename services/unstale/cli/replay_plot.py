"""A plot of a run with two policies. Imported only to draw, because it imports matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unstale.journal.replay import Point
from unstale.report import drawing, files
from unstale.report.statistics import single


def draw(points: Sequence[Point], names: tuple[str, str], file: Path) -> None:
    """Draw accuracy and loss over versions into a PNG file. names: of both policies. Raises UserError."""
    recorded, other = names
    labels = (f"{recorded}, recorded", f"{other}, same updates")
    title = f"The same updates with two policies\nThe clients trained on the models of {recorded}"
    versions = np.array([point.version for point in points], float)
    with files.figure(file, (11.0, 4.6), title) as figure:
        left, right = figure.subplots(1, 2, sharex=True)
        for axes, measure, axis in ((left, "accuracy", "test accuracy"), (right, "loss", "test loss, nats")):
            fields = (measure, f"other_{measure}")
            curves = [single(versions, np.array([getattr(point, field) for point in points])) for field in fields]
            drawing.lines(axes, labels, curves, axis)
            axes.legend()
        left.set_ylim(0, 1.02)
