"""A report as one self-contained HTML page: no script, no request, and a policy that forbids both."""

import base64
import hashlib
import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring, tostring

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from unstale import __version__
from unstale.report import drawing
from unstale.report.content import Report

_FOLDER = Path(__file__).parent

NAMES = {drawing.INK: "ink", drawing.GRID: "grid"} | {
    colour: f"series-{number}" for number, colour in enumerate(drawing.COLOURS, 1)
}
"""Class names for colours: `fill-ink`, `stroke-series-1`, ..."""
_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT_SIZE = re.compile(r"([\d.]+)px")
_DECLARATION = re.compile(r"([\w-]+):\s*([^;]+)")
_DROPPED = {"metadata", "style"}


def html(report: Report) -> str:
    """Return the page. The same report gives the same bytes."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = {
        picture.name: inline(drawing.svg(picture), picture.name, picture.alternative) for picture in report.pictures
    }
    return environment.get_template("page.html").render(
        report=report,
        drawings=drawings,
        style=style,
        # This style sheet and embedded images only.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


# --- drawings of matplotlib, with the colours and fonts of the page, under its content security policy ---


def inline(document: str, name: str, alternative: str) -> str:
    """Return an `svg` element with a unique name on the page. alternative: text for readers who do not see it."""
    root = fromstring(document)  # noqa: S314  (our own)
    _clean(root)
    defined = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    used = {key for element in root.iter() for value in element.attrib.values() for key in _references(value)}
    for element in root.iter():
        _rename(element, name, defined & used)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": alternative})
    return tostring(root, encoding="unicode")


def _clean(element: Element) -> None:
    """Remove namespaces, styles and metadata."""
    element.tag = element.tag.rpartition("}")[2]
    element.text = element.text if element.tag == "text" else None
    element.tail = None
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        element.attrib[key.rpartition("}")[2]] = value
    _restyle(element)
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED:
            element.remove(child)
        else:
            _clean(child)


def _restyle(element: Element) -> None:
    """Replace the style, which the policy forbids, by attributes, and colours by classes."""
    style = element.attrib.pop("style", "")
    if size := _FONT_SIZE.search(style):
        element.attrib["font-size"] = size[1]
    element.attrib |= {key: value for key, value in _DECLARATION.findall(style) if not key.startswith("font")}
    coloured = [key for key in ("fill", "stroke") if element.attrib.get(key) in NAMES]
    classes = [f"{key}-{NAMES[element.attrib.pop(key)]}" for key in coloured]
    if element.tag == "text" and "fill" not in coloured:
        classes.append("fill-ink")
    if classes:
        element.attrib["class"] = " ".join(classes)


def _references(value: str) -> list[str]:
    return _REFERENCE.findall(value) if value.startswith(("#", "url(")) else []


def _rename(element: Element, name: str, referenced: set[str]) -> None:
    """Make referenced identifiers unique on the page, and remove the others. A colour is no reference."""
    for key, value in list(element.attrib.items()):
        if key == "id":
            del element.attrib[key]
            if value in referenced:
                element.attrib[key] = f"{name}-{value}"
        elif referenced.intersection(_references(value)):
            element.attrib[key] = _REFERENCE.sub(rf"#{name}-\1", value)
