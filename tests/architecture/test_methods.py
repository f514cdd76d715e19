"""The methods are documented: every `Source:` links to a heading, and every method has a section."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from unstale.compensators import registry as compensators
from unstale.coordinator.selectors import SELECTORS
from unstale.coordinator.triggers import TRIGGERS
from unstale.policies import registry as policies
from unstale.training.models import MODELS
from unstale.training.partition import PARTITIONS, Partition
from unstale.training.registry import TRAININGS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/methods").glob("*.md"))
PRODUCT = ("services", "proto", "client")

TARGET = r"[\w./-]+\.md(?:#[\w-]+)?|https://\S+"
ENTRY = re.compile(rf"(?:(?P<paper>[^;]*\S), )?(?P<target>{TARGET})")
"""`Paper (authors, venue year), docs/methods/page.md#heading`; the paper may be missing."""

PAPER = re.compile(r"[^()]+ \([^()]+,? (?:19|20)\d\d\)(?:, [\w' ]+)?|ours|Kubernetes documentation|Chaos Mesh API \S+")
PLACEHOLDERS = {"NAME.md", "index.md"}  # of files that commands write
MENTIONED = re.compile(r"[\w./-]*\w\.md\b(?:#[\w-]+)?")

over_pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """The fragments of a page's headings by GitHub's rules: lower case, punctuation away, spaces to dashes."""
    found: dict[str, int] = {}
    result = set()
    for heading in re.findall(r"^#{1,6} (.*)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeated = found.get(anchor, 0)
        found[anchor] = repeated + 1
        result.add(f"{anchor}-{repeated}" if repeated else anchor)
    return result


def sources_of(text: str) -> Iterator[str]:
    """The text after each `Source:` at the start of a line, up to the end of its paragraph, as one line."""
    for found in re.finditer(r"^[ \t]*Source:\s+(.*?)(?=\n[ \t]*\n|\s*\Z)", text, re.MULTILINE | re.DOTALL):
        yield " ".join(found[1].split())


@cache
def strings_of(path: Path) -> tuple[str, ...]:
    """Docstrings of a Python file, of attributes too, and strings that name a page; comments of other files."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return tuple(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    nodes = list(ast.walk(ast.parse(text)))
    documented = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return tuple(str(node.value) for node in strings if id(node) in documented or "docs/" in str(node.value))


def in_product() -> Iterator[tuple[str, str]]:
    """Each string of the product, after the name of its file."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".yml", ".toml"):
                yield from ((str(path.relative_to(ROOT)), text) for text in strings_of(path))


def defects(source: str) -> list[str]:
    """Errors in the form or target of a source."""
    found = []
    for entry in source.split("; "):
        parts = ENTRY.fullmatch(entry)
        if parts is None:
            found.append(f"{entry!r} is not `Paper (authors, year), docs/methods/page.md#heading`")
            continue
        if parts["paper"] is not None and PAPER.fullmatch(parts["paper"]) is None:
            found.append(f"{parts['paper']!r} is not `Name (authors, year)`")
        if missing(parts["target"]):
            found.append(f"{parts['target']} does not exist")
    return found


def missing(target: str) -> bool:
    """Whether a file, or its heading, is not in the repository."""
    if target.startswith("https://"):
        return False
    name, _, anchor = target.partition("#")
    path = ROOT / name
    return not path.is_file() or (bool(anchor) and anchor not in anchors(path))


def test_every_source_links_to_a_heading() -> None:
    found = [(file, source, defects(source)) for file, text in in_product() for source in sources_of(text)]
    assert len(found) > 100
    assert [each for each in found if each[2]] == []


def test_every_source_begins_a_line() -> None:
    # Otherwise neither readers nor tests recognize its end.
    assert [file for file, text in in_product() if re.search(r"\S[ \t]+Source: ", text)] == []


def test_every_cited_document_is_in_the_repository() -> None:
    names = {path.name for folder in ("docs", "proto", "k8s") for path in (ROOT / folder).rglob("*.md")}
    names |= {path.name for path in ROOT.glob("*.md")}
    for file, text in in_product():
        for mentioned in MENTIONED.findall(text):
            is_there = mentioned in names or not missing(mentioned)
            assert is_there or mentioned in PLACEHOLDERS, f"{file} cites {mentioned}"


def policy_sources() -> dict[str, str]:
    return {name: policies.describe(name).source for name in policies.names()}


def source_of(partition: type[Partition]) -> str:
    (source,) = sources_of(partition.__doc__ or "")
    return source


@pytest.mark.parametrize(
    ("kind", "name", "source"),
    [
        *(("policies", name, source) for name, source in policy_sources().items()),
        *(("compensators", name, compensators.describe(name).source) for name in compensators.names()),
        *(("partitions", name, source_of(partition)) for name, partition in PARTITIONS.items()),
    ],
)
def test_the_source_of_a_method_is_the_section_with_its_name(kind: str, name: str, source: str) -> None:
    assert defects(source) == []
    targets = re.findall(r"docs/methods/([a-z-]+)\.md#([\w-]+)", source)
    assert targets and all(page.startswith(kind) and anchor == name for page, anchor in targets)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("compensators.md", compensators.names()),
        ("models.md", MODELS),
        ("partitions.md", PARTITIONS),
        ("rounds.md", (*TRIGGERS, *SELECTORS)),
        ("training.md", TRAININGS),
    ],
)
def test_every_registered_method_has_a_section(page: str, names: tuple[str, ...]) -> None:
    assert set(names) - anchors(ROOT / "docs/methods" / page) == set()


def test_the_docstring_of_a_policy_has_the_source_of_its_class() -> None:
    for name, source in policy_sources().items():
        (documented,) = sources_of(policies.find(name).__doc__ or "")
        assert documented.split("; ")[0] == source.split("; ")[0], name


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs/methods/README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| \[([\w-]+\.md)\]\(\1\)", index, re.MULTILINE))
    assert listed == {path.name for path in PAGES} - {"README.md"}


def equations_of(path: Path) -> tuple[list[str], list[str]]:
    """Displayed equations, in blocks of the language `math`, and those in the text, between dollar signs."""
    text = path.read_text(encoding="utf-8")
    displayed = re.findall(r"^```math\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    inline = []
    for paragraph in re.split(r"\n[ \t]*\n|\n(?=\|)", re.sub(r"`[^`\n]*`", "", without_blocks(text))):
        assert paragraph.count("$") % 2 == 0, paragraph
        inline += re.findall(r"\$([^$]+)\$", paragraph)
    return displayed, inline


@over_pages
def test_the_equations_of_a_page_are_balanced(path: Path) -> None:
    displayed, inline = equations_of(path)
    for equation in (*displayed, *inline):
        plain = re.sub(r"\\[{}|]", "", equation)
        assert plain.count("{") == plain.count("}"), equation
        assert len(re.findall(r"\\left\b", equation)) == len(re.findall(r"\\right\b", equation)), equation
        assert re.findall(r"\\begin\{(\w+)\}", equation) == re.findall(r"\\end\{(\w+)\}", equation), equation


@over_pages
def test_inline_equations_are_rendered_by_github(path: Path) -> None:
    # Markdown removes a backslash before punctuation, a bar ends a cell, and a space does not end an equation.
    for equation in equations_of(path)[1]:
        assert re.search(r"\\[^A-Za-z]", equation) is None, equation
        assert equation == equation.strip(), equation


@over_pages
def test_tables_have_at_most_six_columns(path: Path) -> None:
    for line in without_blocks(path.read_text(encoding="utf-8")).splitlines():
        if line.startswith("|"):
            assert line.count("|") - line.count(r"\|") <= 7, line
