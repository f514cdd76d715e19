"""The documents match the repository: commands, names, numbers, tables, examples, files and links."""

import importlib
import re
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from unstale.cli import commands, main
from unstale.cli.run_directory import HEADING
from unstale.config.write import write_commented
from unstale.metrics.catalogue import CATALOGUE, CLIENT_CATALOGUE, INJECTOR_CATALOGUE, Metric
from unstale.policies import registry

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "client/README.md",
    ROOT / "k8s/README.md",
    *sorted(ROOT.glob("changelog.d/*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / "papers/README.md",
    ROOT / "papers/results/README.md",
]
FRAGMENT_KINDS = {"added", "changed", "fixed", "removed"}
ALREADY_RUN = {"demo", "server", "client", "simulate"}  # these take the keys of a run, checked by `config show`

over_all_documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(path: Path, language: str) -> list[str]:
    """The blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def table(text: str, first_column: str) -> list[dict[str, str]]:
    """The rows of the table whose first column has this head."""
    lines = re.search(rf"^\| {first_column} \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    assert lines is not None
    head, _, *body = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].splitlines()]
    return [dict(zip(head, row, strict=True)) for row in body]


def command_lines(word: str) -> list[str]:
    """Every line of a shell block that starts with this word, its comment left out, in the order of the documents."""
    blocks = [block for path in DOCUMENTS for block in fenced(path, "sh")]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.split()[:1] == [word]]


def resolved(name: str) -> Any:
    """The object of a dotted name: `learner.row_checks.defect`, `unstale_proto.codec.decode`."""
    root = "" if name.startswith(("unstale_client.", "unstale_proto.")) else "unstale."
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(root + ".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


# ------------------------------------------------------------------------------------------------------ files and links


def anchors(path: Path) -> set[str]:
    """The link fragments of a document's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@over_all_documents
def test_every_link_has_a_target(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8")))
    for link in links:
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@over_all_documents
def test_every_file_that_is_mentioned_exists(path: Path) -> None:
    at_the_root = {entry.name for entry in ROOT.iterdir()}
    for mentioned in re.findall(r"`([\w./-]+)`", without_blocks(path.read_text(encoding="utf-8"))):
        in_the_root = "/" in mentioned and mentioned.partition("/")[0] in at_the_root
        of_the_reader = path.parent.name == "guides" and "/" not in mentioned  # who writes it
        below_a_package = re.fullmatch(r"[\w/]+\.py", mentioned) is not None and not of_the_reader
        if in_the_root or mentioned in at_the_root:
            assert (ROOT / mentioned).exists(), mentioned
        elif below_a_package and not (path.parent / mentioned).exists():
            assert (ROOT / "services/unstale" / mentioned).exists(), mentioned
        elif re.search(r"\.(md|toml|txt)$", mentioned):
            raise AssertionError(f"{mentioned} is not in the repository")


def test_every_fragment_follows_the_naming_convention() -> None:
    for path in ROOT.glob("changelog.d/*"):
        number, kind, suffix = path.name.split(".")
        assert number.isdigit() and kind in FRAGMENT_KINDS and suffix == "md"
        assert len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_every_decision_is_listed_under_its_title() -> None:
    rows = table(text_of("docs/decisions/README.md"), "number")
    files = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    titles = [path.read_text(encoding="utf-8").splitlines()[0] for path in files]
    assert [f"# {path.name[:4]}: {row['decision']}" for path, row in zip(files, rows, strict=True)] == titles
    assert [f"[{path.name[:4]}]({path.name})" for path in files] == [row["number"] for row in rows]


# ------------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("line", sorted({*command_lines("unstale"), *command_lines(".venv/bin/unstale")}))
def test_every_command_is_one_that_unstale_accepts(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_commented(Path("unstale.yaml"), force=False)
    command, arguments = get_command(main.app), line.split()[1:]
    while isinstance(command, TyperGroup):
        command = command.get_command(Context(command), arguments.pop(0))
        assert command is not None
    command.make_context(line, list(arguments))
    if command.name in ALREADY_RUN:
        keys = [argument.replace("SERVER", "localhost") for argument in arguments if argument != "--json"]
        assert main.run(["config", "show", *keys]) == 0, capsys.readouterr().err


def test_the_documents_show_every_command() -> None:
    shown = {line.split()[1] for line in [*command_lines("unstale"), *command_lines(".venv/bin/unstale")]}
    command = get_command(main.app)
    assert isinstance(command, TyperGroup)
    assert set(command.list_commands(Context(command))) <= shown


def test_every_make_target_exists() -> None:
    lines = command_lines("make")
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    assert lines and {line.split()[1] for line in lines} <= targets


# ------------------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize(
    "name", ["README.md", "docs/adding-a-policy.md", "docs/guides/notebook.md", "docs/python.md", "docs/trackers.md"]
)
def test_the_python_examples_run_and_print_the_documented_output(name: str) -> None:
    text = text_of(name)
    examples = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL)
    assert examples
    namespace: dict[str, Any] = {"__name__": "example"}
    for program, expected in examples:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(program, name, "exec"), namespace)
        assert printed.getvalue() == expected


@pytest.mark.parametrize(
    ("name", "group"),
    [("docs/adding-a-policy.md", registry.REGISTRY.group), ("docs/adding-a-command.md", commands.ENTRY_POINT_GROUP)],
)
def test_the_entry_point_of_the_example_is_one_that_unstale_loads(name: str, group: str) -> None:
    (block,) = fenced(ROOT / name, "toml")
    assert list(tomllib.loads(block)["project"]["entry-points"]) == [group]


# ---------------------------------------------------------------------------------------------------- names and numbers


@pytest.mark.parametrize(
    ("first_column", "catalogue"),
    [("metric", CATALOGUE), ("client metric", CLIENT_CATALOGUE), ("injector metric", INJECTOR_CATALOGUE)],
)
def test_the_table_of_metrics_is_the_catalogue(first_column: str, catalogue: Sequence[Metric]) -> None:
    rows = table(text_of("docs/metrics.md"), first_column)
    expected = [
        {
            first_column: f"`{metric.name}`",
            "kind": metric.kind,
            "labels": ", ".join(f"`{label}`" for label in metric.labels),
            "help": metric.help,
        }
        for metric in catalogue
    ]
    assert rows == expected


def test_the_metrics_named_elsewhere_are_in_the_catalogue() -> None:
    names = {metric.name for metric in (*CATALOGUE, *CLIENT_CATALOGUE, *INJECTOR_CATALOGUE)}
    names |= {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}
    rules = text_of("monitoring/prometheus/rules/unstale.rules.yml")
    recorded = set(re.findall(r"record: (\S+)", rules))
    for path in DOCUMENTS:
        for name in re.findall(r"[\w:]*\bunstale_(?!proto|papers|client)[\w:]+", path.read_text(encoding="utf-8")):
            assert name in (recorded if ":" in name else names), f"{path.name} names {name}"


@pytest.mark.parametrize(
    "name", re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_][\w.]*)`", without_blocks(text_of("docs/architecture.md")))
)
def test_every_name_in_the_architecture_exists(name: str) -> None:
    if not (ROOT / name).exists():  # `pyproject.toml` is a name too
        resolved(name)


def test_the_limits_in_the_architecture_are_those_of_the_code() -> None:
    for row in table(text_of("docs/architecture.md"), "limit"):
        assert resolved(row["limit"].strip("`")) == int(row["value"])


def test_the_layers_in_the_architecture_are_the_enforced_ones() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    enforced = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert len(enforced) == 3  # of the product, of the distributions, of the client
    for layers in enforced:
        assert "\n".join(f"    {layer}" for layer in layers) in text_of("docs/architecture.md")


def test_the_page_of_replay_shows_the_columns_of_explain() -> None:
    assert HEADING in text_of("docs/replay.md").splitlines()
