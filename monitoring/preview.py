"""Pictures of the dashboards, drawn from the data of a Prometheus, on Grafana's grid and in its dark colours.

They need no Grafana.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from monitoring import panel_pictures
from monitoring.canvas import EDGE, FAINT, GRID, INK, PANEL, Box, Canvas, clock_time
from monitoring.dashboards.dashboard import COLUMNS, RUN, Dashboard, Row, placed
from monitoring.dashboards.panels import Panel
from monitoring.querying import Span, asked, chosen, over_http

WIDE, LINE, GAP = 1680, 30, 8  # pixels: the page, a line of the grid, between panels
HEAD, HEADING = 66, 38  # pixels: above the first panel, of a row's heading
POINTS = 240  # of a line
_LOOK: dict[Any, Any] = {
    "text.color": INK,
    "text.parse_math": False,  # a name may contain a dollar sign
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def draw(
    dashboards: Sequence[Dashboard], url: str, folder: Path, *, seconds: float, scrape_s: float, run: str | None = None
) -> Iterator[Path]:
    """Draw a picture per dashboard. url: of a Prometheus. seconds: displayed time. scrape_s: between two scrapes. run:
    of dashboards of one run; None for the first. Raises UserError without an answer or run.
    """
    get = over_http(url)
    now_s = float(get("query", {"query": "time()"})["result"][1])
    step_s = max(seconds / POINTS, scrape_s)
    span = Span(start_s=now_s - seconds, end_s=now_s, step_s=step_s, scrape_s=scrape_s)
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in dashboards:
        found = chosen(get, dashboard, span, run if RUN in dashboard.variables else None)
        boxes, headings, height = _laid_out(dashboard.rows)
        with rc_context(_LOOK):
            canvas = Canvas(WIDE, height, span)
            _head(canvas, dashboard, found)
            for row, top in headings:
                sign = "›" if row.folded else "⌄"
                canvas.text(GAP + 6, top + HEADING / 2 + 2, f"{sign}  {row.title}", size=11)
            for panel, box in boxes:
                canvas.rectangle(box, fill=PANEL, edge=EDGE)
                panel_pictures.draw(canvas, panel, box, asked(get, panel, found, span))
            path = folder / f"dashboard-{dashboard.uid.removeprefix('unstale-')}.png"
            canvas.save(path)
        yield path


def _laid_out(rows: Sequence[Row]) -> tuple[list[tuple[Panel, Box]], list[tuple[Row, float]], float]:
    """Boxes of panels, heights of headings, and the total height."""
    boxes: list[tuple[Panel, Box]] = []
    headings: list[tuple[Row, float]] = []
    column, line, top = (WIDE - GAP) / COLUMNS, LINE + GAP, float(HEAD)
    for row in rows:
        if row.title:
            headings.append((row, top))
            top += HEADING
        if row.folded:
            continue
        corners, below = placed(row.panels)
        for panel, x, y in corners:
            size = Box(0, 0, panel.width * column - GAP, panel.height * line - GAP)
            boxes.append((panel, replace(size, left=GAP + x * column, top=top + y * line)))
        top += below * line
    return boxes, headings, top + GAP


def _head(canvas: Canvas, dashboard: Dashboard, found: dict[str, str]) -> None:
    """Draw title, selected variables and time range."""
    canvas.text(GAP + 6, 20, dashboard.title, size=13, weight="bold")
    left = float(GAP + 6)
    for variable in dashboard.variables:
        value = "All" if variable.several else found[variable.name]
        left = canvas.text(left, 48, variable.title, colour=FAINT) + 6
        left = canvas.text(left, 48, value) + 22
    span = canvas.span
    start, end = (clock_time(at_s, with_seconds=False) for at_s in (span.start_s, span.end_s))
    canvas.text(WIDE - GAP - 6, 20, f"{start} to {end}", colour=FAINT, align="right")
