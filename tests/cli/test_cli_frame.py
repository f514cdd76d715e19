"""The command line: exit codes, error messages, options and imports."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import unstale
from unstale import __version__
from unstale.cli import main
from unstale.cli.options import SHORT, option
from unstale.config import Settings
from unstale.config.keys import KEYS
from unstale.policies import describe, names, registry
from unstale.policies.catalogue import PolicySummary, summaries


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The settings that `unstale config show` resolves these arguments to, by key."""
    assert main.run(["config", "show", *arguments]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    values = {}
    for name in KEYS:
        value = resolved
        for part in name.split("."):
            value = value[part]
        values[name] = value
    return values


OF_AN_APP = {"model.name": "app", "data.name": "private", "evaluate_clients_every": 10}
IMPLIED = {
    "app": OF_AN_APP,
    "initial": OF_AN_APP,
    "flower.partition_id": {"client.first": 13},
    "flower.num_partitions": {"clients": 13},
}
"""Values of other keys that follow from a key."""


def other_value(name: str) -> tuple[str, Any]:
    """A text for an option, and the value it stands for, that is not the default."""
    key = KEYS[name]
    if name in ("server.address", "injector.address", "injector.upstream"):
        return "tcp://127.0.0.1:6000", "tcp://127.0.0.1:6000"
    if name == "run.until":
        return "mae < 0.5", "mae < 0.5"
    if name == "client.server":
        return "tcp://10.0.0.1:6000", "tcp://10.0.0.1:6000"
    if name in ("ray", "compensator.ray", "attack.name"):
        choice = {"attack.name": "noise"}.get(name, "local")
        return choice, choice
    if name.endswith(".http_address"):
        return "127.0.0.1:6001", "127.0.0.1:6001"
    if " or " in key.expected and key.kind is str and not key.may_be_null:
        other = next(choice for choice in key.expected.split(" or ") if choice != key.default)
        return other, other
    if key.kind is dict:
        return "{other: 0.5}", {"other": 0.5}
    if key.kind is list:
        return "other", [{"name": "other", "settings": {}}]
    if name in ("server.norm_max", "server.num_examples_max"):  # a word or a number
        return "13", 13
    if key.kind is str:
        return "other", "other"
    if name.endswith("_bytes_max"):
        return "1048577", 1048577
    if key.kind is int:
        return "13", 13
    number = {"server.lease_s": 15.0, "encoding.fraction": 0.25}.get(name, 0.75)
    return str(number), number


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.kind is not bool])
def test_every_key_can_be_set_by_its_option_and_by_set(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, value = other_value(name)
    assert KEYS[name].default != value
    expected = {other: key.default for other, key in KEYS.items()} | IMPLIED.get(name, {}) | {name: value}
    assert shown(capsys, option(name), text) == expected
    assert shown(capsys, "--set", f"{name}={text}") == expected
    if name in SHORT:
        assert shown(capsys, SHORT[name], text) == expected


def test_a_key_that_is_true_or_false_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for name, key in KEYS.items() if key.kind is bool] == [
        "data.private",
        "data.download",
        "run.keep_updates",
        "server.stay",
        "server.insecure",
        "client.insecure",
        "injector.tcp",
        "injector.insecure",
    ]
    for flag in ("--insecure", "--server.insecure"):
        assert shown(capsys, flag)["server.insecure"] is True
    assert shown(capsys, "--set", "server.insecure=true", "--no-insecure")["server.insecure"] is False


def test_options_win_over_variables_over_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rounds: 11\nclients: 12\nseed: 13\n")
    monkeypatch.setenv("UNSTALE_CLIENTS", "22")
    monkeypatch.setenv("UNSTALE_SEED", "23")
    by_option = shown(capsys, "--config", str(file), "--seed", "33")
    monkeypatch.setenv("UNSTALE_CONFIG", str(file))
    by_variable = shown(capsys, "--seed", "33")
    assert (by_option["rounds"], by_option["clients"], by_option["seed"]) == (11, 22, 33)
    assert by_variable == by_option


def test_options_are_unique() -> None:
    every = [option(name) for name in KEYS] + list(SHORT.values()) + ["--config", "--set", "--help", "--json"]
    assert len(every) == len(set(every))
    assert SHORT.keys() <= KEYS.keys()


def test_the_help_names_key_variable_default_and_range_of_every_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.run(["config", "show", "--help-all"]) == 0
    text = capsys.readouterr().out
    for key in KEYS.values():
        assert option(key.name) in text
        assert f"Expected: {key.expected}. Key {key.name}, variable {key.variable}." in text


@pytest.mark.parametrize(
    ("command", "sections"),  # and keys
    [
        ("server", {"server", "run"}),
        ("client", {"attack", "client"}),
        ("simulate", {"attack", "simulation", "run.until"}),
        ("demo", {"attack", "run.until"}),
    ],
)
def test_a_command_shows_the_options_that_concern_it(
    command: str, sections: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main.run([command, "--help-all"]) == 0
    text = capsys.readouterr().out
    processes = {"run", "server", "client", "attack", "simulation"}
    for key in KEYS.values():
        if key.section in processes:
            assert (key.variable in text) == (not sections.isdisjoint({key.section, key.name}))


WRONG = {
    "confg": "unknown command 'confg'; did you mean 'config'?",
    "config wite": "unknown command 'wite'; did you mean 'write'?",
    "config": "missing command; see unstale config --help",
    "--versoin": "unknown option '--versoin'; did you mean '--version'?",
    "config show --round 3": "unknown option '--round'; did you mean '--rounds'?",
    "config show --training.learning_rate 1": (
        "unknown option '--training.learning_rate'; did you mean '--training.learning-rate'?"
    ),
    "config show --zzz": "unknown option '--zzz'; see unstale config show --help",
    "config show --rounds": "option '--rounds' requires an argument",
    "config show --rounds x": "--rounds: rounds is 'x', expected a whole number from 1 to 1,000,000,000",
    "config show --policy.settings 5": ("--policy.settings: policy.settings is 5, expected a mapping of keys"),
    "config show --set rounds": "--set is 'rounds', expected KEY=VALUE, for example --set trigger.k=10",
    "config show --set round=3": "--set: unknown key 'round'; did you mean 'rounds'?",
    "config show --set training=3": ("--set: training is a group of keys, expected one of them, such as training.name"),
    "config check /nowhere.yaml": "cannot read /nowhere.yaml: no such file or directory",
    "config show --config /nowhere.yaml": "cannot read /nowhere.yaml: no such file or directory",
}


@pytest.mark.parametrize(("line", "sentence"), WRONG.items())
def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"unstale: {sentence}\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("config show more", r"got unexpected extra argument(\(s\))? \(more\); see unstale config show --help"),
        ("config check", r"missing argument '(file|FILE)'; see unstale config check --help"),
    ],
)
def test_a_mistake_that_typer_finds_is_one_sentence_too(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of its version."""
    assert main.run(line.split()) == 2
    assert re.fullmatch(f"unstale: {sentence}\n", capsys.readouterr().err)


def test_an_unknown_variable_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTALE_ROUND", "5")
    assert main.run(["config", "show"]) == 2
    assert capsys.readouterr().err == "unstale: UNSTALE_ROUND: unknown key 'round'; did you mean 'rounds'?\n"


def test_config_write_then_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    assert main.run(["config", "write", str(file)]) == 0
    assert main.run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: written; use it with --config {file}\n{file}: ok\n"
    assert main.run(["config", "write", str(file)]) == 2
    assert main.run(["config", "write", str(file), "--force"]) == 0


def test_config_check_reports_errors_of_parts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("policy: {name: fedbuf}")
    assert main.run(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err == "unstale: unknown policy 'fedbuf'; did you mean 'fedbuff'?\n"


def test_policies_are_listed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["policies", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert tuple(policy["name"] for policy in listed) == names()
    for policy in listed:
        assert policy["summary"] and policy["source"] and policy["loops"] and policy["memory"]
        for setting in policy["settings"]:
            assert setting.keys() >= {"name", "type", "default", "range", "source", "description"}
            assert setting["type"] and setting["source"] and setting["description"], (policy["name"], setting)


def test_the_list_of_policies_is_equal_to_their_classes() -> None:
    listed = {
        name: PolicySummary(one.summary, one.loops, one.memory)
        for name, one in ((name, describe(name)) for name in names())
    }
    assert summaries() == listed
    assert [*summaries()] == [*names()]


def test_policies_are_listed_from_a_zip_file_and_without_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = summaries()
    folder = Path(unstale.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", folder.parent, folder.name)
    code = "import unstale; from unstale.policies import catalogue; print(unstale.__file__, catalogue.summaries())"
    environment = {**os.environ, "PYTHONPATH": archive}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed == f"{Path(archive, 'unstale', '__init__.py')} {listed}\n"

    def missing(package: str, resource: str) -> bytes:
        raise FileNotFoundError(resource)

    monkeypatch.setattr("pkgutil.get_data", missing)
    assert summaries() == listed


def test_a_policy_of_another_package_is_listed_by_its_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("unstale.plugins.names", lambda group, built_in, **_: ("dynsgd", "other"))
    monkeypatch.setitem(
        registry._BUILT_IN, "other", type("Other", (registry._BUILT_IN["direct"],), {"__doc__": "Own."})
    )
    assert main.run(["policies"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["other"]]
    assert row.split() == [
        "other",
        "Own.",
        "sync,",
        "k-async",
        *["none;", "live", "versions", "for", "stale_form=model"],
    ]


def test_a_setting_is_listed_with_its_type_range_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["policies", "--json", "fedasync"]) == 0
    (fedasync,) = json.loads(capsys.readouterr().out)
    assert (fedasync["loops"], fedasync["memory"]) == (["k-async"], "live versions")
    settings = {setting["name"]: setting for setting in fedasync["settings"]}
    assert (settings["alpha"]["type"], settings["alpha"]["range"]) == ("a number", "> 0 and <= 1")
    assert (settings["b"]["default"], settings["b"]["reference_default"]) == (4, 6)
    assert settings["staleness"]["type"] == "one of polynomial, constant, hinge"


def test_policies_are_listed_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main.run(["policies"]) == 0
    text = capsys.readouterr().out
    assert [name for name in names() if name not in text] == []


def test_one_policy_is_shown_with_its_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main.run(["policies", "fedavg", "gsgm"]) == 0
    text = capsys.readouterr().out
    assert "uniform, synchronous samples" in text
    assert "2 d + N flags" in text
    assert main.run(["policies", "fedavgg"]) == 2
    assert "did you mean 'fedavg'" in capsys.readouterr().err


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Usage: unstale" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"unstale {__version__}\n"


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (typer.Exit(3), 3), (typer.Exit(), 0)])
def test_exit_codes_of_a_command_that_ends_early(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_early(settings: Settings) -> str:
        raise raised

    monkeypatch.setattr("unstale.cli.config.resolved", end_early)
    assert main.run(["config", "show"]) == code


def test_our_own_mistake_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Settings) -> str:
        raise AssertionError("ours")

    monkeypatch.setattr("unstale.cli.config.resolved", fail)
    with pytest.raises(AssertionError, match="ours"):
        main.run(["config", "show"])


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["server", "--help"], ["server", "--help-all"], ["config", "show"], ["--version"], ["policies"]],
)
def test_torch_is_not_imported_before_it_is_needed(arguments: list[str]) -> None:
    program = (
        "import sys; from unstale.cli.main import run; code = run(sys.argv[1:]); "
        "sys.exit(code or [name for name in ('torch', 'sklearn', 'zmq') if name in sys.modules] or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_python_m_unstale_is_unstale() -> None:
    ended = subprocess.run([sys.executable, "-m", "unstale", "confg"], capture_output=True, text=True, check=False)
    expected = (2, "", "unstale: unknown command 'confg'; did you mean 'config'?\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == expected
