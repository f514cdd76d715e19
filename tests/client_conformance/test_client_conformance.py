"""`unstale conformance --client`: sound clients pass every check; a client with a fault fails those of its rule."""

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unstale.cli import main
from unstale.client_conformance.check import CHECKS, LEVELS
from unstale.client_conformance.examination import Row, examine
from unstale.errors import UserError

HERE = Path(__file__).parent
ARGUMENTS = "--address {address} --client-id {client_id} --folder {folder}"
REFERENCE = f"{sys.executable} {HERE / 'reference_client.py'} {ARGUMENTS}"
JOINED = f"{sys.executable} {HERE / 'joined_client.py'} {ARGUMENTS}"
LIMIT_S = 10.0
SOUND = ("hello-first", "rounds", "not-after-ack")  # examined with each fault, so that one that breaks all is noticed

REFERENCE_FAULTS: Mapping[str, set[str]] = {
    "new-session": {"hello-repeated", "reconnect", "hello-first-asked", "server-silent", "stop-shutdown"},
    "holds-nothing": {
        "reconnect",
        "reconnect-while-training",
        "hello-first-asked",
        "error-quarantined",
        "stop-shutdown",
    },
    "holds-all": {"holding-empty"},
    "no-newest-task": {"heartbeats", "heartbeats-while-training"},
    "no-heard": {"heartbeats", "unknown-fields"},
    "other-bytes": {
        "lost-ack",
        "reconnect",
        "hello-first-asked",
        "error-not-stored",
        "error-quarantined",
        "stop-shutdown",
    },
    "nan": {"update-payload"},
    "short": {"update-header", "update-payload"},
    "wrong-base": {"update-header"},
    "wrong-checksum": {"update-header"},
    "keeps-other-run": {"other-run"},
    "restarts-numbers": {"numbers-after-reconnect"},
    "no-resend": {"lost-ack", "error-not-stored"},
    "no-resend-on-welcome": {"reconnect", "hello-first-asked", "error-quarantined", "stop-shutdown"},
    "resends-always": {"not-without-proof"},
    "keeps-duplicate": {"lost-ack"},
    "keeps-rejected": {"rejections", "unknown-task"},
    "keeps-damaged-id": {"unknown-task"},
    "takes-copies": {"doubled-task"},
    "takes-other-run": {"task-of-another-run"},
    "takes-any-signature": {"wrong-signature"},
    "takes-any-size": {"wrong-size", "refused-not-counted"},
    "counts-refused": {"refused-not-counted"},
    "finishes-old-task": {"newer-task"},
    "silent-training": {"heartbeats-while-training", "newer-task"},
    "dies-of-garbage": {"unusable-messages"},
    "waits-for-ever": {"server-silent"},
    "one-hello": {"hello-repeated"},
    "exit-code": {"stop-finished"},
    "ignores-finished": {"stop-finished"},
    "ignores-superseded": {"stop-superseded"},
    "ignores-unknown-client": {"error-unknown-client"},
    "ends-at-shutdown": {"stop-shutdown"},
}

JOINED_FAULTS: Mapping[str, set[str]] = {
    "asks-from-zero": {"model-resume"},
    "sends-past-credit": {"update-credit"},
    "ignores-again": {"update-again"},
    "follows-overtaken": {"update-overtaken"},
    "coarse-bfloat16": {"update-bfloat16"},
    "adds-rejected": {"residual-top-k"},
    "forgets": {"kept-over-kill", "start", "new-session"},
    "no-key": {"keys-round", "keys-reconnect"},
}


def failures(command: str, expected: set[str]) -> set[str]:
    """The failed ones of the expected checks and of a few that should pass."""
    rows = list(examine(command, names={*expected, *SOUND}, limit_s=LIMIT_S))
    assert expected <= {row.check for row in rows}
    return {row.check for row in rows if row.verdict != "passed"}


@pytest.fixture(scope="module")
def failed() -> Mapping[str, set[str]]:
    """By fault, the failed checks. The clients run side by side, because they wait most of the time."""
    commands = {fault: (f"{REFERENCE} --fault {fault}", names) for fault, names in REFERENCE_FAULTS.items()}
    commands |= {
        fault: (f"{JOINED} --fault {fault}" + (" --key {key}" if fault == "no-key" else ""), names)
        for fault, names in JOINED_FAULTS.items()
    }
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(commands, pool.map(lambda given: failures(*given), commands.values()), strict=True))


@pytest.mark.parametrize("fault", REFERENCE_FAULTS)
@pytest.mark.slow
def test_a_fault_fails_the_checks_of_its_rule(fault: str, failed: Mapping[str, set[str]]) -> None:
    assert failed[fault] == REFERENCE_FAULTS[fault]


@pytest.mark.parametrize("fault", [fault for fault in JOINED_FAULTS if fault != "no-key"])
@pytest.mark.slow
def test_a_fault_of_another_level_fails_the_checks_of_its_rule(fault: str, failed: Mapping[str, set[str]]) -> None:
    assert failed[fault] == JOINED_FAULTS[fault]


@pytest.mark.slow
def test_a_client_without_its_key_reaches_no_server_with_keys(failed: Mapping[str, set[str]]) -> None:
    assert failed["no-key"] == {*JOINED_FAULTS["no-key"], *SOUND}


def unpassed(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.verdict != "passed"]


@pytest.mark.slow
def test_our_client_passes_all_levels() -> None:
    rows = list(examine(JOINED))
    assert [(row.level, row.verdict) for row in unpassed(rows)] == [("keys", "skipped")] * 2
    assert {row.level for row in rows} == set(LEVELS)


def test_our_client_passes_with_keys() -> None:
    assert unpassed(list(examine(f"{JOINED} --key {{key}}", ["keys", "outbox"]))) == []


def test_a_client_of_150_lines_passes_the_minimum() -> None:
    assert unpassed(list(examine(REFERENCE, ["minimum"]))) == []


def test_every_section_of_a_check_is_in_the_contract() -> None:
    document = (HERE.parents[1] / "proto" / "PROTOCOL.md").read_text()
    sections = {line.split()[1].rstrip(".") for line in document.splitlines() if line.startswith(("## ", "### "))}
    assert {check.section.split()[0] for check in CHECKS.values()} <= sections


def test_the_command_prints_each_check_and_the_broken_rule(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{REFERENCE} --fault exit-code"
    assert main.run(["conformance", "--client", command, "--level", "minimum", "--json"]) == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert [name for name, row in rows.items() if row["verdict"] == "failed"] == ["stop-finished"]
    assert rows["stop-finished"]["section"] == "4.5"
    assert rows["stop-finished"]["detail"] == "expected exit code 0 after a finished run, got 3"


def test_a_table_and_a_line_show_the_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main.run(["conformance", "--client", f"{JOINED} --key {{key}}", "--level", "keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["keys", "keys-round", "1", "passed"] in [line.split() for line in lines]
    assert lines[-1] == "2 checks: 2 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedbuff", "--client", REFERENCE], "POLICY is 'fedbuff' together with --client"),
        (["--level", "minimum"], "--level is 'minimum' without --client"),
    ],
)
def test_policies_and_clients_are_not_examined_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["conformance", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_level_without_the_feature_is_skipped_with_the_reason() -> None:
    (row,) = examine(REFERENCE, names=["update-int8"])
    assert (row.verdict, row.detail) == ("skipped", "the client does not name int8 in `encodings` of hello")


@pytest.mark.parametrize(
    ("command", "levels", "message"),
    [
        ("true {address}", [], "expected {client_id} in it"),
        (REFERENCE, ["maximum"], "unknown level 'maximum'"),
        ("/nowhere/client {address} {client_id}", ["minimum"], "expected a command that starts"),
    ],
)
def test_a_wrong_argument_is_an_error_of_one_sentence(command: str, levels: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("{", r"\{")) as caught:
        list(examine(command, levels))
    assert "\n" not in str(caught.value)
