"""Printed tables and sources: files are read as written, and errors in them are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from unstale_papers import printed
from unstale_papers.preset import Number, Source
from unstale_papers.presets.fedhist_paper import ACCURACIES, SPEEDS
from unstale_papers.presets.inversion_tables import PRINTED
from unstale_papers.printed import Paper, leading_number

FILES = sorted(path.stem for path in Path(printed.__file__).parent.glob("*.yaml"))
TEXT = """
tables:
  speed:
    keys: [N/K, method]
    columns:
      - ["0.3", rounds]
      - [IID, rounds]
    rows: |
      10  FedAvg 3340 1.9x
      100 FedAvg 27.80 -2.5±0.5
sources:
  setup:
    - key: clients
      value: "100"
      tag: paper
    - {key: rounds, value: "800", tag: "[P]", why: Not stated.}
  one:
    - {key: alpha, value: "0.1", tag: "R:WK"}
"""


def paper(**changes: Any) -> Paper:
    """Read the text with other values at dotted keys, with `__` for a dot."""
    parsed = yaml.safe_load(TEXT)
    for key, value in changes.items():
        *path, last = key.split("__")
        section = parsed
        for part in path:
            section = section[int(part) if part.isdigit() else part]
        section[last] = value
    return Paper.model_validate(parsed)


def test_each_word_of_a_row_belongs_to_its_printed_column() -> None:
    assert list(paper().tables["speed"].cells()) == [
        (("10", "FedAvg"), ("0.3", "rounds"), "3340"),
        (("10", "FedAvg"), ("IID", "rounds"), "1.9x"),
        (("100", "FedAvg"), ("0.3", "rounds"), "27.80"),
        (("100", "FedAvg"), ("IID", "rounds"), "-2.5±0.5"),
    ]


def test_sources_follow_the_order_of_the_file() -> None:
    assert paper().sources("setup") == (
        Source(key="clients", value="100", tag="paper"),
        Source(key="rounds", value="800", tag="[P]", why="Not stated."),
    )
    assert paper().source("one") == Source(key="alpha", value="0.1", tag="R:WK")


@pytest.mark.parametrize(("text", "number"), [("3340", 3340.0), ("1.9x", 1.9), ("40.9±18.1", 40.9), ("0.0", 0.0)])
def test_a_printed_text_begins_with_its_number(text: str, number: float) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables__speed__rows": "10 FedAvg 3340"}, "the row '10 FedAvg 3340' has 3 words, expected 4"),
        ({"tables__speed__rows": "10 FedAvg 1 2\n10 FedAvg 3 4"}, "a row is there twice"),
        ({"tables__speed__columns": [["IID"], ["IID"]]}, "a column is there twice"),
        ({"tables__speed__rows": "10 FedAvg 3340 much"}, "could not convert string to float: 'much'"),
        ({"tables__speed__title": "Speed"}, "Extra inputs are not permitted"),
        ({"sources__one": [{"key": "a", "value": 5, "tag": "paper"}]}, "Input should be a valid string"),
        ({"sources__one": [{"key": "a", "value": "5", "tag": "ours"}]}, "String should match pattern"),
        ({"sources__one": [{"key": "", "value": "5", "tag": "paper"}]}, "at least 1 character"),
    ],
)
def test_an_invalid_file_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        paper(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_as_described(name: str) -> None:
    found = printed.load(name)
    assert found.tables
    assert all(found.sources(group) for group in found.groups)


def test_the_numbers_of_presets_are_those_of_the_files() -> None:
    assert FILES == ["fedar", "fedhist", "inversion", "wkafl"]
    assert ACCURACIES["CIFAR-10", "IID", "100", "FedHist"] == Number(0.5861, "58.61")
    assert SPEEDS["1.0", "FedHist"]["speedup"] == Number(2.0, "2.0x")
    assert PRINTED["3", "40", "first order"] == {
        "time to match": Number(820.0, "820"),
        "final accuracy of class 5": Number(0.737, "73.7 %"),
    }
