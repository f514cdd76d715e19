"""docs/adding-a-toxic.md shows a toxic that is short, passes every law, and is part of a scenario."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.toxic_laws import EXAMPLES, LAWS
from unstale.toxics import registry
from unstale.toxics.scenario import Scenario

DOCUMENT = Path(__file__).parents[2] / "docs/adding-a-toxic.md"


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def congestion(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the document, registered."""
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(block("python"), DOCUMENT.name, "exec"), namespace)
    monkeypatch.setitem(registry.TOXICS, "congestion", namespace["Congestion"])
    monkeypatch.setitem(EXAMPLES, "congestion", {"delay": {"distribution": "exponential", "mean_s": 0.2}})
    return namespace["Congestion"]


def test_the_toxic_of_the_document_is_short() -> None:
    assert len([line for line in block("python").splitlines() if line]) < 25


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_toxic_of_the_document_passes(congestion: Any, law: Any) -> None:
    law(congestion)


def test_the_scenario_of_the_document_is_valid(congestion: Any) -> None:
    scenario = Scenario.parsed(yaml.safe_load(block("yaml")), DOCUMENT.name)
    (toxic,) = scenario.groups[0].toxics
    assert isinstance(toxic, congestion) and toxic.toxicity == 0.5
