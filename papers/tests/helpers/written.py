"""Parsers for outputs of a reproduction: tables of a Markdown file and of a page."""

import csv
import html
import re
from html.parser import HTMLParser
from pathlib import Path

from typing_extensions import override

Table = list[list[str]]
"""Rows, the header first."""


def rows_of_csv(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def tables_of_markdown(text: str) -> dict[str, Table]:
    """Tables by caption, which is bold above the table."""
    found: dict[str, Table] = {}
    caption = ""
    for line in text.splitlines():
        if line.startswith("**"):
            caption = _plain(line.strip("*"))
        elif line.startswith("| ") and not re.fullmatch(r"[| :-]+", line):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found.setdefault(caption, []).append([_plain(cell.strip()) for cell in cells])
    return found


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"\\(.)", r"\1", text))


class Page(HTMLParser):
    """tables: by caption; lines of a cell have " / " between. elements: tags with attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, Table] = {}
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._texts: list[str] = []
        self._table: Table = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag == "table":
            self._table = []
        if tag == "tr":
            self._table.append([])
        if tag in ("td", "th", "caption"):
            self._texts = []

    @override
    def handle_endtag(self, tag: str) -> None:
        said = "".join(self._texts).strip()
        if tag in ("td", "th"):
            self._table[-1].append(" / ".join(said.split("\n")))
        if tag == "caption":
            self.tables[" ".join(said.split())] = self._table

    @override
    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]
