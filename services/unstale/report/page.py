"""A report as one self-contained HTML page: no script, no request, and a policy that forbids both."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from unstale import __version__
from unstale.report import drawing, svg
from unstale.report.content import Cell, Column, Picture, Report

_FOLDER = Path(__file__).parent
LONG = 20  # characters of a cell; a longer one may break anywhere


def html(report: Report) -> str:
    """Return the page. The same report gives the same bytes."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(style),  # noqa: S704  (our own file)
        policy=_policy(style),
        version=__version__,
        drawn=_drawn,
        kind=_kind,
        inside=_inside,
    )


def _policy(style: str) -> str:
    """Return a content security policy that allows this style sheet and embedded images only."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _drawn(picture: Picture) -> Markup:
    return Markup(svg.inline(drawing.svg(picture), picture.name, picture.alternative))  # noqa: S704  (made by us)


def _kind(column: Column, cell: Cell) -> str:
    """Return the classes of a cell: numbers align right, and a long text may break."""
    if column.is_stacked:
        return "stacked number"
    if column.is_number:
        return "number"
    return "long" if len(column.shown(cell)) > LONG else "text"


def _inside(column: Column, cell: Cell) -> Markup:
    """Return the content of a cell: text, a link, or lines."""
    shown = column.shown(cell)
    if column.is_page:
        return Markup('<a href="{}.html">{}</a>').format(shown, shown)
    if column.is_stacked:
        return Markup("\n").join(Markup("<span>{}</span>").format(line) for line in shown.split("\n"))
    return escape(shown)
