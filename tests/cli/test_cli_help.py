"""The help of every command: nothing is cut off, common options come first, and the rest by `--help-all`."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from unstale import compensators, policies
from unstale.cli import main
from unstale.cli.options import OF_PARTS_TOO, SHORT, option
from unstale.config.keys import KEYS

WITH_SETTINGS = {
    "demo": ("--clients", "--policy", "--trigger", "--scenario", "--partition.alpha", "--attacker"),
    "server": ("--clients", "--run", "--address", "--keys", "--policy", "--encoding.updates"),
    "client": ("--server", "--first", "--count", "--key", "--data.path", "--client.patience-s"),
    "inject": ("--upstream", "--scenario", "--injector.keys", "--clients"),
    "simulate": ("--rounds", "--policy", "--k", "--save-model", "--scenario"),
    "inversion audit": ("--clients", "--rounds", "--compensator.settings"),
    "partition show": ("--clients", "--partition", "--alpha", "--data"),
    "scenario show": ("--clients", "--seed"),
    "scenario chaos-mesh": ("--clients", "--clients-each"),
    "config show": ("--rounds", "--policy", "--set"),
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)


def commands(above: Any, path: str = "") -> dict[str, Any]:
    """Every command and group by its name, the program itself under ""."""
    found = {path: above}
    for name, command in getattr(above, "commands", {}).items():
        found |= commands(command, f"{path} {name}".strip())
    return found


COMMANDS = commands(get_command(main.app))


def help_of(capsys: pytest.CaptureFixture[str], command: str, flag: str = "--help") -> str:
    assert main.run([*command.split(), flag]) == 0
    return capsys.readouterr().out


def squeezed(text: str) -> str:
    return " ".join(text.split())


def rows(text: str) -> set[str]:
    """The names of options at the beginning of a row."""
    names: set[str] = set()
    for line in text.splitlines():
        if line.startswith("  -"):
            names |= {word.strip(",") for word in line.strip().partition("  ")[0].split() if word.startswith("-")}
    return names


@pytest.mark.parametrize("columns", ["60", "80"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_name_and_word_within_the_terminal(
    command: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    flag = "--help-all" if command in WITH_SETTINGS else "--help"
    text = help_of(capsys, command, flag)
    assert "…" not in text
    assert [line for line in text.splitlines() if len(line) > int(columns)] == []
    names = set(text.replace(",", " ").split())
    for parameter in COMMANDS[command].params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert {*parameter.opts, *parameter.secondary_opts} <= names
            assert squeezed(parameter.help) in squeezed(text)
    for name, below in getattr(COMMANDS[command], "commands", {}).items():
        assert squeezed(f"{name} {(below.help or '').partition(chr(10) * 2)[0]}") in squeezed(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, command, "-h")
    assert text == help_of(capsys, command)
    assert "-h, --help" in text


@pytest.mark.parametrize("command", WITH_SETTINGS)
def test_help_shows_common_options_and_help_all_every_option(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, full = help_of(capsys, command), help_of(capsys, command, "--help-all")
    assert rows(short) < rows(full)
    assert rows(full) == {
        name
        for parameter in COMMANDS[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if parameter.param_type_name == "option" and not parameter.hidden
    } | {"-h", "--help"}
    assert {*WITH_SETTINGS[command]} <= rows(short)
    assert len(short.splitlines()) <= 110  # three screens; the help of the server had 918 lines
    assert f"`unstale {command} --help-all` shows them." in squeezed(short)
    assert "`unstale config write` writes a YAML file with every key" in squeezed(short)
    assert "--help-all` shows them" not in full


def test_help_all_is_an_option_of_every_command_that_takes_settings() -> None:
    with_it = {
        name
        for name, command in COMMANDS.items()
        if any("--help-all" in parameter.opts for parameter in command.params)
    }
    assert with_it == WITH_SETTINGS.keys()
    assert with_it == {name for name, command in COMMANDS.items() if any("--set" in p.opts for p in command.params)} - {
        "replay"
    }


# --------------------------------------------------------------------------------------------------------- second names


def resolved(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The lines of `config show` on stderr."""
    assert main.run(["config", "show", *arguments]) == 0
    return capsys.readouterr().err


def test_the_help_names_the_key_of_alpha(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "--alpha sets partition.alpha;" in squeezed(help_of(capsys, "demo"))


@pytest.mark.parametrize("typed", ["--alpha", "--partition.alpha"])
def test_a_mistake_names_the_option_as_typed_and_its_key(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["config", "show", typed, "x"]) == 2
    expected = "partition.alpha is 'x', expected a number from 0.001 to 1,000,000"
    assert capsys.readouterr().err == f"unstale: {typed}: {expected}\n"


def test_alpha_beside_a_policy_with_an_alpha_of_its_own_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    expected = (
        "unstale: --alpha sets partition.alpha; other keys of that name are set by --set policy.settings.alpha=VALUE\n"
    )
    assert resolved(capsys, "--alpha", "0.5", "--policy", "fedasync") == expected
    assert resolved(capsys, "--alpha=0.5", "--policy", "fedasync") == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--alpha", "0.5", "--policy", "dynsgd"],  # has no alpha
        ["--alpha", "0.5", "--policy", "nothing"],  # the command that runs it says so
        ["--partition.alpha", "0.5", "--policy", "fedasync"],
        ["--alpha", "0.5", "--policy", "fedasync", "--set", "policy.settings.alpha=0.3"],
        ["--no-server.insecure"],
    ],
)
def test_an_unambiguous_option_prints_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(capsys, *arguments) == ""


def test_a_second_name_that_ends_like_another_key_of_the_command_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(capsys, "--no-insecure") == (
        "unstale: --insecure sets server.insecure; other keys of that name are set by "
        "--client.insecure and --injector.insecure\n"
    )


def test_the_second_names_that_are_settings_of_parts_too_are_all_known() -> None:
    settings = {
        "policy": {s.name for name in policies.names() for s in policies.describe(name).settings},
        "compensator": {s.name for name in compensators.names() for s in compensators.describe(name).settings},
    }
    shared = {
        name
        for name, short in SHORT.items()
        if any(short.removeprefix("--").replace("-", "_") in words for words in settings.values())
    }
    assert shared == OF_PARTS_TOO.keys()


# ----------------------------------------------------------------------------------------------------------- completion


COMPLETIONS = {"bash": "complete -o default", "zsh": "#compdef unstale", "fish": "complete --command unstale"}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_the_completion_of_the_own_shell_is_shown(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell, raising=False)
    in_typer_0_12 = SimpleNamespace(detect_shell=lambda: (shell, shell))
    monkeypatch.setattr("typer.completion.shellingham", in_typer_0_12, raising=False)
    assert main.run(["--show-completion"]) == 0
    assert COMPLETIONS[shell] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "completed"),
    [("unstale serv", "server"), ("unstale config sh", "show"), ("unstale server --partition.al", "--partition.alpha")],
)
def test_bash_completes_commands_and_options(words: str, completed: str) -> None:
    asked = {"_UNSTALE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ended = run(environment=asked)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, [completed], "")


def run(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "unstale", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
    )


def test_every_second_name_is_shown_beside_the_long_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = rows(help_of(capsys, "config show", "--help-all"))
    assert {*SHORT.values(), *(option(name) for name in KEYS)} <= shown
