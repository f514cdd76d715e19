"""The source uses standard terms: those that scripts/source_measures/vocabulary.toml replaces occur nowhere."""

import re
from pathlib import Path

import pytest

from source_measures.source import read
from source_measures.vocabulary import occurrences, replaced_terms

ROOT = Path(__file__).parents[2]
CONTRACTS = {"=held": 4}
"""Occurrences that stay: `held` is a key of `unstale partition show --json`."""
PHRASES = ("told right", "whoever", "said to be", "is played", "goes on from", "in a sentence", "what becomes of")
"""Phrases of former texts, each with a plain equivalent in CONTRIBUTING.md's style."""


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    sources = [source for folder in ("services", "proto", "client") for source in read(ROOT / folder, ROOT)]
    return occurrences(sources, replaced_terms())


@pytest.mark.parametrize("term", replaced_terms())
def test_a_replaced_term_does_not_occur(term: str, counts: dict[str, int]) -> None:
    replacement = replaced_terms()[term]
    assert counts[term] == CONTRACTS.get(term, 0), f"{term} is replaced by: {replacement}"


def documents() -> list[Path]:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "client/README.md",
        ROOT / "proto/PROTOCOL.md",
        *(ROOT / "k8s").rglob("*.md"),
    ]
    return [page for page in pages if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_document_uses_plain_phrases(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8").lower())
    assert [phrase for phrase in PHRASES if phrase in text] == []
