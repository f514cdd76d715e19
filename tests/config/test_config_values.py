"""The words for the bounds of a field."""

from typing import Any

import pytest
from pydantic import Field

from unstale.settings.values import range_of


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, ""),
        ({"ge": 1, "le": 1024}, "from 1 to 1,024"),
        ({"gt": 0, "le": 1.0}, "> 0 and <= 1"),
        ({"min_length": 1, "max_length": 128}, "of 1 to 128 characters"),
        ({"min_length": 2}, "of length >= 2"),
        ({"max_length": 8}, "of length <= 8"),
    ],
)
def test_bounds_are_described_in_words(bounds: dict[str, Any], words: str) -> None:
    assert range_of(Field(**bounds).metadata) == words
