"""A drawing as a part of a page: in the page's colours and letters, under its content security policy.

matplotlib writes a document of its own, with colours, fonts and identifiers in it and rules for all that is around it.
"""

import re
from xml.etree.ElementTree import Element, fromstring, tostring

from unstale.report.drawing import COLOURS, GRID, INK

NAMES = {INK: "ink", GRID: "grid"} | {colour: f"series-{place}" for place, colour in enumerate(COLOURS, 1)}
"""Classes that stand for colours: `fill-ink`, `stroke-series-1`, ..."""

_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT_SIZE = re.compile(r"([\d.]+)px")
_DROPPED = {"metadata", "style"}


def inline(drawn: str, name: str, alternative: str) -> str:
    """An `svg` element. drawn: the document. name: that no other on the page has. alternative: what it shows."""
    root = fromstring(drawn)  # noqa: S314  (our own)
    _clean(root)
    there = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    referred = {
        found for element in root.iter() for value in element.attrib.values() for found in _referred(value)
    }
    for element in root.iter():
        _rename(element, name, there & referred)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-label": alternative})
    return tostring(root, encoding="unicode")


def _clean(element: Element) -> None:
    """Without namespaces, and nothing that speaks of the document around it."""
    element.tag = element.tag.rpartition("}")[2]
    element.text = element.text if element.tag == "text" else None
    element.tail = None
    for key in list(element.attrib):
        value = element.attrib.pop(key)
        element.attrib[key.rpartition("}")[2]] = value
    _restyle(element)
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED:
            element.remove(child)
        else:
            _clean(child)


def _restyle(element: Element) -> None:
    """Attributes in place of a style, which the page's policy forbids, and names in place of its colours."""
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key in ("font", "font-size"):
            size = _FONT_SIZE.search(value)
            assert size is not None, value
            element.attrib["font-size"] = size[1]
        elif key and key != "font-family":
            element.attrib[key] = value
    named = [key for key in ("fill", "stroke") if element.attrib.get(key) in NAMES]
    classes = [f"{key}-{NAMES[element.attrib.pop(key)]}" for key in named]
    if element.tag == "text" and "fill" not in named:
        classes.append("fill-ink")
    if classes:
        element.attrib["class"] = " ".join(classes)


def _referred(value: str) -> list[str]:
    return _REFERENCE.findall(value) if value.startswith(("#", "url(")) else []


def _rename(element: Element, name: str, wanted: set[str]) -> None:
    """Identifiers that are referred to become this picture's own; the others say nothing. A colour is no reference."""
    for key, value in list(element.attrib.items()):
        if key == "id":
            del element.attrib[key]
            if value in wanted:
                element.attrib[key] = f"{name}-{value}"
        elif any(found in wanted for found in _referred(value)):
            element.attrib[key] = _REFERENCE.sub(rf"#{name}-\1", value)
