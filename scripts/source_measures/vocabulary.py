"""Occurrences of replaced terms in identifiers and module names."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from source_measures.source import Source

VOCABULARY = Path(__file__).with_name("vocabulary.toml")


def replaced_terms() -> dict[str, str]:
    """Each replaced term with its replacement."""
    terms: dict[str, str] = tomllib.loads(VOCABULARY.read_text(encoding="utf-8"))["terms"]
    return terms


def words(name: str) -> str:
    """The words of a snake_case or CamelCase name, each between two spaces."""
    return f" {' '.join(re.findall('[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+', name))} "


def identifiers(source: Source) -> Counter[str]:
    """Occurrences of each identifier, as `words`; the parts of a dotted module name count separately."""
    names: Counter[str] = Counter()
    for node in ast.walk(source.tree):
        for _, value in () if isinstance(node, ast.Constant) else ast.iter_fields(node):
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    names.update(words(part) for part in name.split("."))
    return names


def occurrences(sources: Sequence[Source], terms: Iterable[str]) -> dict[str, int]:
    """Occurrences of each term.

    Args:
        sources: the modules.
        terms: in the forms that vocabulary.toml explains.

    Returns:
        Each term with the number of identifiers, or modules, that contain it.
    """
    paths = [f"/{source.module.replace('.', '/')}/" for source in sources]
    names = [identifiers(source) for source in sources]
    everywhere: Counter[str] = sum(names, Counter())
    counts = {}
    for term in terms:
        scope, _, name = term.rpartition(":")
        if "/" in name:
            counts[term] = sum(path.endswith(f"/{name}/") for path in paths)
            continue
        is_whole, term_words = name.startswith("="), words(name)
        own_names = [] if scope else [words(path.split("/")[-2]).lower() for path in paths]
        in_scope = (one for one, path in zip(names, paths, strict=True) if f"/{scope}/" in path)
        counted: Counter[str] = sum(in_scope, Counter()) if scope else everywhere
        counts[term] = sum(n for one, n in counted.items() if _has(one, term_words, is_whole=is_whole))
        counts[term] += sum(_has(one, term_words.lower(), is_whole=is_whole) for one in own_names)
    return counts


def _has(name: str, term: str, *, is_whole: bool) -> bool:
    return name == term if is_whole else term in name
