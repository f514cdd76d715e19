"""Commands of other packages: discovery, errors and imports."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Annotated

import pytest
import typer

from unstale import __version__, plugins
from unstale.cli import commands, main
from unstale.errors import UserError

Run = Callable[..., tuple[int, str, str]]

app = typer.Typer(help="Greet in several ways.")


@app.command()
def morning() -> None:
    """Greet in the morning."""
    typer.echo("good morning")


@app.command()
def fail() -> None:
    """Fail as a user's mistake does."""
    raise UserError("it is night, expected day; wait")


def greet(name: str, times: Annotated[int, typer.Option("--times", help="How often.")] = 1) -> None:
    """Greet somebody."""
    typer.echo(" ".join([f"hello {name}"] * times))


def plug_in(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Register exactly these commands."""
    points = [EntryPoint(name, value, commands.ENTRY_POINT_GROUP) for name, value in values.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; returns exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")

    def of(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        return (code, *capsys.readouterr())

    return of


def test_a_function_is_a_command(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plug_in(monkeypatch, greet=f"{__name__}:greet")
    assert run("greet", "you", "--times", "2") == (0, "hello you hello you\n", "")
    assert run("greet", "you", "--time", "2") == (2, "", "unstale: unknown option '--time'; did you mean '--times'?\n")


def test_a_typer_app_is_a_group_of_commands(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plug_in(monkeypatch, say=f"{__name__}:app")
    assert run("say", "morning") == (0, "good morning\n", "")
    assert run("say", "fail") == (2, "", "unstale: it is night, expected day; wait\n")
    assert run("say", "mornin") == (2, "", "unstale: unknown command 'mornin'; did you mean 'morning'?\n")


def test_commands_of_other_packages_are_listed_with_their_help(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plug_in(monkeypatch, say=f"{__name__}:app", greet=f"{__name__}:greet")
    code, text, _ = run("--help")
    lines = {line.strip("│ ").partition(" ")[0]: line for line in text.splitlines()}
    assert code == 0
    assert "Greet in several ways." in lines["say"]
    assert "Greet somebody." in lines["greet"]
    assert "simulate" in lines


def test_an_unknown_command_is_compared_with_those_of_other_packages(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plug_in(monkeypatch, greet=f"{__name__}:greet")
    assert run("gret") == (2, "", "unstale: unknown command 'gret'; did you mean 'greet'?\n")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("nowhere.at:all", "cannot be imported from nowhere.at:all: No module named 'nowhere'"),
        ("sys:nothing", "cannot be imported from sys:nothing: module 'sys' has no attribute 'nothing'"),
        ("broken_command:app", "cannot be imported from broken_command:app: it is broken here"),
        ("sys:version", "is sys:version, expected a typer.Typer or a function"),
        ("builtins:int", "is builtins:int, expected a typer.Typer or a function"),
    ],
)
def test_a_command_that_cannot_be_loaded_is_one_error_line_and_harms_no_other(
    value: str, sentence: str, monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "broken_command.py").write_text("raise ValueError('it is\\nbroken here')")
    monkeypatch.syspath_prepend(tmp_path)
    plug_in(monkeypatch, say=value)
    error = f"command 'say' {sentence}"
    for arguments in (["say"], ["say", "--help"], ["say", "morning"]):
        assert run(*arguments) == (2, "", f"unstale: {error}\n")
    assert run("keys", "--help")[0] == 0
    code, text, _ = run("--help")
    assert code == 0
    assert error in text


def test_a_name_that_two_packages_register_is_refused(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    points = [EntryPoint("say", f"{__name__}:{name}", commands.ENTRY_POINT_GROUP) for name in ("app", "greet")]
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))
    assert run("say", "morning") == (
        2,
        "",
        "unstale: command 'say' is registered by several packages; uninstall all but one of them\n",
    )


def test_a_command_of_unstale_itself_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    plug_in(monkeypatch, policies=f"{__name__}:greet")
    code, text, _ = run("policies", "--json", "fedavg")
    assert code == 0
    assert '"fedavg"' in text


@pytest.mark.parametrize("name", ["reproduce", "sweep", "recommend"])
def test_a_missing_command_of_the_papers_has_an_install_hint(
    name: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    plug_in(monkeypatch)
    assert run(name, "fh-t2", "--help") == (
        2,
        "",
        f"unstale: the command {name!r} is in the package unstale-papers, which is not installed; install it from the "
        "repository of unstale: pip install ./papers\n",
    )


def test_the_commands_of_the_papers_are_those_that_they_register() -> None:
    text = (Path(__file__).parents[2] / "papers/pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    assert set(project["entry-points"][commands.ENTRY_POINT_GROUP]) == set(commands.INSTALLABLE)
    assert {package for package, _ in commands.INSTALLABLE.values()} == {project["name"]}
    assert f"unstale=={__version__}" in project["dependencies"]
    assert project["version"] == __version__


def test_no_package_is_imported_for_another_command(tmp_path: Path) -> None:
    information = tmp_path / "greetings-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[{commands.ENTRY_POINT_GROUP}]\ngreet = greetings:app\n")
    (tmp_path / "greetings.py").write_text("import typer\n\napp = typer.Typer()\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from unstale.cli.main import run; run(sys.argv[2:]); "
        "sys.exit(5 * ('greetings' in sys.modules))"
    )
    for arguments, code in ((["policies", "--help"], 0), (["plicies"], 0), (["greet", "--help"], 5)):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), *arguments], capture_output=True, check=False
        )
        assert ended.returncode == code, arguments
