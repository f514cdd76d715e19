"""The page of a drawn dashboard, in pixels from its upper left corner."""

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from monitoring.querying import Series, Span

PAGE, PANEL, EDGE, GRID = "#111217", "#181b1f", "#26292f", "#2b2e35"
INK, FAINT = "#dcdce6", "#9396a3"
DOTS_PER_INCH = 100
TICKS_S = (5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the page."""

    left: float
    top: float
    width: float
    height: float

    def inside(self, *, left: float, top: float, right: float, bottom: float) -> "Box":
        """The box reduced at each side."""
        return Box(self.left + left, self.top + top, self.width - left - right, self.height - top - bottom)


class Canvas:
    """One page. span: the time that all panels show."""

    def __init__(self, width: float, height: float, span: Span) -> None:
        self.width = width
        self.height = height
        self.span = span
        size = (width / DOTS_PER_INCH, height / DOTS_PER_INCH)
        self._figure = Figure(figsize=size, dpi=DOTS_PER_INCH, facecolor=PAGE)
        FigureCanvasAgg(self._figure)
        count = round((span.end_s - span.start_s) / span.step_s) + 1
        self.times_s: Numbers = span.start_s + span.step_s * np.arange(count, dtype=np.float64)

    def text(
        self,
        left: float,
        middle: float,
        text: str,
        *,
        size: float = 8.5,
        colour: Any = INK,
        weight: str = "normal",
        align: str = "left",
    ) -> float:
        """Write a line; return its right end."""
        written: Text = self._figure.text(
            left / self.width,
            1 - middle / self.height,
            text,
            fontsize=size,
            color=colour,
            fontweight=weight,
            ha=align,
            va="center_baseline",
        )
        return float(written.get_window_extent().x1)

    def rectangle(self, box: Box, *, fill: Any, edge: Any = "none") -> None:
        self._figure.add_artist(
            Rectangle(
                (box.left / self.width, 1 - (box.top + box.height) / self.height),
                box.width / self.width,
                box.height / self.height,
                facecolor=fill,
                edgecolor=edge,
                linewidth=0.8,
                transform=self._figure.transFigure,
            )
        )

    def axes(self, box: Box) -> Axes:
        """An empty coordinate system, without a frame."""
        made = self._figure.add_axes(
            (
                box.left / self.width,
                1 - (box.top + box.height) / self.height,
                box.width / self.width,
                box.height / self.height,
            ),
            zorder=2,  # above the panels
        )
        for side in made.spines.values():
            side.set_visible(False)
        made.tick_params(length=0)
        return made

    def points(self, series: Series) -> Numbers:
        """A value for each of `times_s`; nan where the series has none."""
        found = np.full(len(self.times_s), nan)
        for at_s, value in zip(series.times_s, series.values, strict=True):
            found[round((at_s - self.span.start_s) / self.span.step_s)] = value
        found[np.isinf(found)] = nan
        return found

    def time_axis(self, axes: Axes) -> None:
        """Ticks at round times of the day."""
        start_s, end_s = self.times_s[0], self.times_s[-1]
        step_s = next((one for one in TICKS_S if (end_s - start_s) / one <= 7), TICKS_S[-1])
        ticks = np.arange(-(-start_s // step_s) * step_s, end_s + 1e-6, step_s)
        axes.set_xlim(start_s, end_s)
        axes.set_xticks(ticks, [clock_time(at_s, with_seconds=step_s < 60) for at_s in ticks])

    def save(self, path: Path) -> None:
        """Save a PNG of 256 colours, which has a third of the size."""
        picture = io.BytesIO()
        self._figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        image = Image.open(picture).convert("RGB")
        few = image.quantize(256, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def clock_time(at_s: float, *, with_seconds: bool) -> str:
    """Time of the day, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S" if with_seconds else "%H:%M")
