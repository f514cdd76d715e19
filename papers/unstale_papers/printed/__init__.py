"""Printed tables and sources of settings: a YAML file for each paper, validated on reading.

`tables`: see `PrintedTable`. `sources`: groups of `preset.Source`.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from unstale_papers.preset import Source

Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PrintedTable(_Strict):
    """A printed table.

    Attributes:
        keys: meaning of the first words of a row, such as the method.
        columns: labels of each further word.
        rows: the table, a row a line, words between blanks.
    """

    keys: list[Text] = Field(min_length=1)
    columns: list[list[Text]] = Field(min_length=1)
    rows: Text

    @model_validator(mode="after")
    def _check(self) -> Self:
        width = len(self.keys) + len(self.columns)
        rows = [line.split() for line in self.rows.splitlines()]
        for row in rows:
            if len(row) != width:
                raise ValueError(f"the row {' '.join(row)!r} has {len(row)} words, expected {width}")
            for text in row[len(self.keys) :]:
                leading_number(text)
        for name, every in (
            ("row", [tuple(row[: len(self.keys)]) for row in rows]),
            ("column", [tuple(column) for column in self.columns]),
        ):
            if len(set(every)) < len(every):
                raise ValueError(f"a {name} is there twice")
        return self

    def cells(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
        """Yield keys of the row, labels of the column and the printed text, row by row."""
        count = len(self.keys)
        for row in map(str.split, self.rows.splitlines()):
            for column, text in zip(self.columns, row[count:], strict=True):
                yield tuple(row[:count]), tuple(column), text


class _SourceRow(_Strict):
    key: Text
    value: Text
    tag: str = Field(pattern=r"^(paper|R:\w+|\[M\]|\[P\])$")
    why: str = ""


class Paper(_Strict):
    """A file.

    Attributes:
        tables: by name.
        groups: of sources, by name; `sources` in the file.
    """

    tables: dict[str, PrintedTable]
    groups: dict[str, list[_SourceRow]] = Field(alias="sources")

    def sources(self, group: str) -> tuple[Source, ...]:
        """Return a group of sources."""
        return tuple(Source(**row.model_dump()) for row in self.groups[group])

    def source(self, group: str) -> Source:
        """Return the only source of a group."""
        (source,) = self.sources(group)
        return source


def leading_number(text: str) -> float:
    """Return the number that a printed text begins with: 1.9 of `1.9x`, 40.9 of `40.9±18.1`.

    Raises:
        ValueError: for a text that begins with none.
    """
    return float(text.partition("±")[0].removesuffix("x"))


@cache
def load(paper: str) -> Paper:
    """Read the file of a paper.

    Args:
        paper: name of the file, without suffix.

    Raises:
        pydantic.ValidationError: for a file that is not as described.
    """
    text = Path(__file__).with_name(f"{paper}.yaml").read_text(encoding="utf-8")
    return Paper.model_validate(yaml.safe_load(text))
