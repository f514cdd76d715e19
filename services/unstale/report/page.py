"""Renders a report as one HTML page without scripts or requests; its content security policy forbids both."""

import base64
import hashlib
import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring, tostring

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from unstale.report import drawing
from unstale.report.content import Report
from unstale.version import __version__

_FOLDER = Path(__file__).parent

_COLOUR_CLASSES = {drawing.INK: "ink", drawing.GRID: "grid"} | {
    colour: f"series-{number}" for number, colour in enumerate(drawing.COLOURS, 1)
}
"""CSS class of each colour of a drawing, without the prefix `fill-` or `stroke-`."""
_REFERENCE = re.compile(r"#([\w.-]+)")  # of an id, as in `url(#id)`; colours match as well
_FONT_SIZE = re.compile(r"([\d.]+)px")
_DECLARATION = re.compile(r"([\w-]+):\s*([^;]+)")
_DROPPED_TAGS = {"metadata", "style"}


def html(report: Report) -> str:
    """Return the report as HTML. The same report gives the same bytes."""
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
        # The browser accepts this style sheet and embedded images only.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


# --- matplotlib's drawings, changed to use the colours and fonts of the page and to obey its policy ---


def inline(document: str, name: str, alternative: str) -> str:
    """Return an SVG document as an element of the page. name: id prefix. alternative: text for screen readers."""
    root = fromstring(document)  # noqa: S314  (drawn by matplotlib)
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
    """Remove namespaces, metadata and white space between elements, and replace styles."""
    element.tag = element.tag.rpartition("}")[2]
    element.text = element.text if element.tag == "text" else None
    element.tail = None
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        element.attrib[key.rpartition("}")[2]] = value
    _restyle(element)
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED_TAGS:
            element.remove(child)
        else:
            _clean(child)


def _restyle(element: Element) -> None:
    """Replace the `style` attribute, which the page forbids, by attributes without fonts, and colours by classes."""
    style = element.attrib.pop("style", "")
    if size := _FONT_SIZE.search(style):
        element.attrib["font-size"] = size[1]
    element.attrib |= {key: value for key, value in _DECLARATION.findall(style) if not key.startswith("font")}
    coloured = [key for key in ("fill", "stroke") if element.attrib.get(key) in _COLOUR_CLASSES]
    classes = [f"{key}-{_COLOUR_CLASSES[element.attrib.pop(key)]}" for key in coloured]
    if element.tag == "text" and "fill" not in coloured:
        classes.append("fill-ink")
    if classes:
        element.attrib["class"] = " ".join(classes)


def _references(value: str) -> list[str]:
    return _REFERENCE.findall(value) if value.startswith(("#", "url(")) else []


def _rename(element: Element, name: str, referenced: set[str]) -> None:
    """Prefix the referenced ids and their references with `name`, and remove the other ids."""
    for key, value in list(element.attrib.items()):
        if key == "id":
            del element.attrib[key]
            if value in referenced:
                element.attrib[key] = f"{name}-{value}"
        elif referenced.intersection(_references(value)):
            element.attrib[key] = _REFERENCE.sub(rf"#{name}-\1", value)
