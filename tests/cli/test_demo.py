"""The demo: its output, and the end of its processes."""

import io
import json
import os
import queue
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import typer
from rich.console import Console

from support.processes import START_S, free_port
from support.processes import Process as Command
from unstale.cli import demo, demo_output, demo_processes, main, printing
from unstale.config import Settings, load
from unstale.errors import UserError

SMALL = ["demo", "--clients", "2", "--model", "logreg", "--trigger", "async", "--device", "cpu", "--scenario", "null"]

LISTENING = {"event": "listening", "address": "tcp://127.0.0.1:1", "http_address": "127.0.0.1:2"}
PROGRESS = {
    "event": "progress",
    "version": 3,
    "rounds": 9,
    "metrics": {"accuracy": 0.5, "loss": 1.25},
    "client_metrics": {},
    "training_metrics": {},
    "staleness_mean": None,
    "updates_per_s": 2.0,
    "clients": {"waiting": 1, "working": 2, "contributed": 4, "unavailable": 0, "lost": 8},
    "elapsed_s": 1.5,
}
INJECTED = {
    "event": "injected",
    "up": 928,
    "down": 1358,
    "delay_s": 120.0,
    "faults": {"bandwidth": 2287, "latency": 2343},
    "in_flight_messages": 1,
    "in_flight_bytes": 0,
    "connections": 20,
    "overflowed": 0,
}
FINISHED = {
    "event": "finished",
    "test_accuracy": 0.75,
    "metrics": {"accuracy": 0.75},
    "client_metrics": {},
    "training_metrics": {},
    "versions": 9,
    "seconds": 2.0,
    "updates": {"accepted": 9},
    "model_digest": "d",
    "missed": None,
}


def lines(*facts: dict[str, Any]) -> demo_processes.Events:
    events: demo_processes.Events = queue.SimpleQueue()
    for fact in facts:
        events.put(json.dumps(fact))
    return events


# ----------------------------------------------------------------------------------------------------------- the output


def test_figures_that_are_null_are_shown_as_dashes() -> None:
    console = Console(file=io.StringIO(), width=100)
    assert (
        demo_output.watch(lines({**PROGRESS, "metrics": {"accuracy": None, "loss": None}}, FINISHED), console)
        == FINISHED
    )
    shown = console.file.getvalue().split()  # type: ignore[attr-defined]
    assert shown[-7:] == ["3/9", "-", "-", "-", "2", "7", "1.5"]
    assert "test accuracy -" in demo_output.result({**FINISHED, "metrics": {"accuracy": None}})


def test_a_value_that_was_not_reached_is_a_line_of_the_result() -> None:
    missed = "run.until, mae < 0.5, was not reached in 9 rounds; the last mae is 0.7500"
    assert demo_output.result({**FINISHED, "missed": missed}).splitlines()[2] == missed


@pytest.mark.parametrize(("height", "rows_shown"), [(1, 1), (10, 8), (26, 24), (80, 24)])
def test_the_table_has_as_many_rows_as_fit_in_the_terminal(height: int, rows_shown: int) -> None:
    console = Console(file=io.StringIO(), width=40, height=height, force_terminal=True)
    rows = [demo_output._row(PROGRESS)] * 50
    shown = console.render_lines(demo_output._table(rows[-demo_output._rows_max(console) :], ["accuracy", "loss"]))
    assert len(shown) == 1 + rows_shown  # the heading; and no row takes two lines, though there are 40 columns only


def test_the_introduction_names_the_attackers_if_there_are_any() -> None:
    honest, attacked = (
        demo_output.introduction(Settings(clients=3, attack={"name": name, "clients": 3}), LISTENING)  # type: ignore[arg-type]
        for name in (None, "noise")
    )
    assert attacked == honest.replace("\nserver", "\n[bold]attack[/bold] noise by 10 (clients 0, 1, 2).\nserver")
    assert attacked != honest


def test_all_rows_are_shown_without_a_terminal() -> None:
    assert demo_output._rows_max(Console(file=io.StringIO(), height=5)) == demo_output.ROWS


@pytest.mark.parametrize(("columns", "left_out"), [(100, 0), (80, 0), (60, 0), (50, 1), (40, 3)])
def test_figures_are_whole_in_narrow_terminals(columns: int, left_out: int) -> None:
    metrics = {"accuracy": 0.9831, "loss": 1.25}
    row = demo_output._row({**PROGRESS, "version": 190, "rounds": 200, "metrics": metrics, "elapsed_s": 123.4})
    console = Console(file=io.StringIO(), width=columns)
    console.print(demo_output._table([row], list(metrics), width=columns))
    heading, figures = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(figures.split()) == len(heading.split()) == len(row) - left_out
    assert {*figures.split()} <= {*row}
    assert {"190/200", "0.9831", "123.4"} <= {*figures.split()}


def test_a_terminal_shows_the_remaining_time() -> None:
    # 40 versions took 20 s, so that the other 160 take 80 s, 3 s of which are over.
    last = {**PROGRESS, "version": 40, "rounds": 200, "elapsed_s": 20.0}
    assert demo_output._left(last, 3.0) == "a round takes 0.50 s on average; about 77 s left"
    assert demo_output._left(last, 100.0) == "a round takes 0.50 s on average; about 0 s left"
    assert demo_output._left({**last, "version": 0, "elapsed_s": 0.0}, 4.0) == (
        "the first of 200 rounds are under way, for 4 s"
    )


def test_a_terminal_shows_the_table_and_under_it_the_time_left() -> None:
    console = Console(file=io.StringIO(), width=60, height=10, force_terminal=True)
    view = demo_output._View(console)
    for version in range(20):
        view.take({**PROGRESS, "version": version})
    view.take({**INJECTED})
    shown = ["".join(part.text for part in line).rstrip() for line in console.render_lines(view)]
    assert len(shown) <= 9  # the cursor stands below
    assert " ".join(shown[-4:-1]) == printing.injected(INJECTED)
    assert shown[-1].startswith("a round takes 0.08 s on average; about")
    assert shown[1].split()[0] == "16/9"
    view.finished = True
    assert "left" not in "".join(part.text for line in console.render_lines(view) for part in line)


MAE = {"mae": {"mean": 48.25}, "loss": {"mean": 0.5}}
OF_CLIENTS = {**PROGRESS, "metrics": {}, "client_metrics": MAE, "training_metrics": {"loss": {"mean": 2.0}}}


def test_without_a_test_set_the_means_over_the_clients_are_shown_by_name() -> None:
    console = Console(file=io.StringIO(), width=80)
    finished = {**FINISHED, "test_accuracy": None, "metrics": {}, "client_metrics": MAE}
    demo_output.watch(
        lines({**OF_CLIENTS, "client_metrics": {}}, OF_CLIENTS, {**OF_CLIENTS, "version": 6}, finished), console
    )
    shown = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [line[:3] for line in shown] == [
        ["version", "loss", "staleness"],  # before the first evaluations of clients
        ["3/9", "2.0000", "-"],
        ["version", "mae", "loss"],
        ["3/9", "48.2500", "0.5000"],
        ["6/9", "48.2500", "0.5000"],
    ]
    assert "clients mae 48.2500" in demo_output.result(finished)


def test_long_names_of_metrics_fit_in_narrow_terminals() -> None:
    names = ["val/mean_intersection_over_union", "loss"]
    row = demo_output._row({**PROGRESS, "metrics": dict.fromkeys(names, 0.5)})
    console = Console(file=io.StringIO(), width=60)
    console.print(demo_output._table([row], names, width=60))
    heading, figures = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(figures.split()) == len(heading.split()) == len(row)


def test_without_a_terminal_every_row_is_printed_as_it_comes() -> None:
    console = Console(file=io.StringIO(), width=80)
    events = lines(PROGRESS, {**PROGRESS, "version": 6})
    events.put(int(signal.SIGTERM))
    with pytest.raises(typer.Exit):
        demo_output.watch(events, console)
    shown = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [line[0] for line in shown] == ["version", "3/9", "6/9"]


def test_the_introduction_explains_slow_synchronous_rounds() -> None:
    texts = {
        name: demo_output.introduction(Settings(clients=3, trigger={"name": name}), LISTENING)  # type: ignore[arg-type]
        for name in ("sync", "k-async")
    }
    assert "\nEach round waits for all 3 clients: its slowest message" in texts["sync"]
    assert "waits for all" not in texts["k-async"]


# -------------------------------------------------------------------------------------------------------- its processes


def python(program: str, events: demo_processes.Events) -> demo_processes.Process:
    return demo_processes.Process(execute, [program], os.environ, events)


def execute(program: str) -> None:
    exec(program, {})


def test_a_process_reports_its_lines_and_then_its_end() -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    with python("print('one'); print('two')", events) as process:
        assert [events.get(timeout=START_S) for _ in range(3)] == ["one\n", "two\n", process]
        assert process.code == 0
        process.check()


def test_a_process_that_ended_with_a_sentence_ends_the_demo_with_it() -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    program = "import sys; sys.exit(print('unstale.x: told\\nunstale: wrong\\nlater', file=sys.stderr) or 2)"
    with python(program, events), pytest.raises(UserError, match=r"^wrong$"):
        demo_processes.next_message(events)


FACTS = """
import multiprocessing, os, sys
print("torch" in sys.modules, multiprocessing.get_start_method(allow_none=True), os.environ.get("OTHER"), flush=True)
"""


@pytest.mark.skipif(demo_processes.CONTEXT.get_start_method() != "forkserver", reason="processes are not forked here")
def test_processes_begin_with_pytorch_imported_and_their_own_environment() -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    with demo_processes.Process(execute, [FACTS], {**os.environ, "OTHER": "theirs"}, events):
        assert events.get(timeout=START_S) == "True None theirs\n"


def test_errors_of_a_crashed_process_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    with python("raise AssertionError('ours')", events), pytest.raises(typer.Exit) as raised:
        demo_processes.next_message(events)
    assert raised.value.exit_code == 1
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["Process unstale raise AssertionError('ours'):", "Traceback (most recent call last):"]
    assert said[-2:] == ["AssertionError: ours", "unstale: a process of the demo ended with code 1"]


def test_a_process_that_ended_well_ends_nothing() -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    with python("", events) as process:
        ended = events.get(timeout=START_S)
        assert ended is process
        events.put(ended)
        events.put(json.dumps(PROGRESS))
        assert demo_processes.next_message(events) == PROGRESS


def test_a_process_that_ignores_termination_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_processes, "KILL_S", 0.01)
    events: demo_processes.Events = queue.SimpleQueue()
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    with python(program, events) as process:
        assert events.get(timeout=START_S) == "deaf\n"
    assert process.code == -signal.SIGKILL


def test_a_signal_ends_the_demo_with_its_number() -> None:
    events: demo_processes.Events = queue.SimpleQueue()
    events.put(int(signal.SIGTERM))
    with pytest.raises(typer.Exit) as raised:
        demo_processes.next_message(events)
    assert raised.value.exit_code == 143


def test_processes_receive_the_settings_of_the_demo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTALE_SERVER__HEARTBEAT_S", "3")
    monkeypatch.setenv("UNSTALE_CONFIG", "/nowhere.yaml")
    monkeypatch.setenv("OTHER", "kept")
    settings = Settings(rounds=7, policy={"name": "fedasync", "settings": {"alpha": 0.5}})
    environment = demo._environment(settings)
    assert environment["OTHER"] == "kept"
    assert "UNSTALE_CONFIG" not in environment
    assert load(variables=environment) == settings


# ---------------------------------------------------------------------------------------------------- how the demo ends


class Played:
    """Replaces the demo's processes: the server prints all its lines at once. codes: how each of them ended."""

    codes: Mapping[str, int | None]

    def __init__(
        self, function: object, arguments: Sequence[str], environment: object, events: demo_processes.Events
    ) -> None:
        self.code = self.codes[arguments[0]]
        if arguments[0] == "server":
            for fact in (LISTENING, PROGRESS, FINISHED):
                events.put(json.dumps(fact))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        if self.code:
            raise UserError("it ended badly")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    monkeypatch.setattr(printing, "stop_on_signals", lambda stop: None)
    monkeypatch.setattr(demo_processes, "prepare", lambda: None)
    monkeypatch.setattr(demo_processes, "Process", Played)
    monkeypatch.setattr(demo_processes, "GOODBYE_S", 0.01)
    return Played


@pytest.mark.parametrize(
    ("codes", "ended"),
    [
        ({"server": 0, "client": 0}, 0),
        ({"server": 0, "client": None}, 0),  # a client that never ends
        ({"server": 2, "client": 0}, 2),  # the model could not be saved
    ],
)
def test_the_result_is_printed_however_the_processes_end(
    codes: dict[str, int | None], ended: int, played: type[Played], capsys: pytest.CaptureFixture[str]
) -> None:
    played.codes = codes
    assert main.run([*SMALL, "--json"]) == ended
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "test_accuracy": 0.75, "versions": 9, "seconds": 2.0, "model_digest": "d",
        "metrics": {"accuracy": 0.75},
    }  # fmt: skip
    assert captured.err.endswith("unstale: it ended badly\n") == (ended == 2)


# ------------------------------------------------------------------------------------------------------------- for real


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("whose", ["the server's, before it listens", "a client's, which has no such file"])
def test_the_demo_ends_with_the_sentence_of_a_process_that_fails(whose: str, tmp_path: Path) -> None:
    if whose.startswith("the server"):
        options = ["--clients", "200"]
        sentence = "1442 examples cannot give 200 clients 8 each; take at most 180 clients"
    else:
        images = np.zeros((200, 8, 8), dtype=np.uint8)
        labels = np.arange(200) % 10
        np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
        missing = tmp_path / "missing.npz"
        options = ["--data", "npz", "--data.path", str(tmp_path / "mine.npz")]
        options += ["--set", f"client.data_path={missing}"]
        sentence = f"{missing}: no such file; expected an .npz with"
    with Command(*SMALL, *options) as command:
        assert command.end() == 2
        assert command.errors().startswith(f"unstale: {sentence}")
        assert command.errors().count("\n") == 1


@pytest.mark.slow
@pytest.mark.network
def test_with_a_scenario_an_injector_runs_and_reports() -> None:
    with Command(*SMALL, "--rounds", "10", "--evaluate-every", "2", "--scenario", "satellite", "--json") as command:
        result = command.fact()
        assert result["versions"] == 10
        assert command.end() == 0
        shown = " ".join(command.errors().split())
        assert "trigger async, scenario satellite" in shown
        # At 300 ms a message and more, ten rounds take long enough for it to have reported something.
        assert re.search(r"\d+ up, \d+ down, delayed 0\.\d+ s on average; .* affected: .*\d+ latency", shown)


@pytest.mark.slow
@pytest.mark.network
def test_the_default_scenario_is_lte() -> None:
    with Command("demo", "--clients", "2", "--model", "logreg", "--rounds", "2", "--json") as command:
        assert command.fact()["versions"] == 2
        assert command.end() == 0
        assert "trigger k-async, scenario lte." in command.errors()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_server_behind(number: signal.Signals) -> None:
    with Command(*SMALL, "--rounds", str(10**9), "--evaluate-every", str(10**9)) as command:
        while (words := (command._output.next() or "").split())[:1] != ["server"]:
            pass
        host, port = words[1].removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=START_S) as connection:
            command.process.send_signal(number)
            assert command.end() == (-number if number == signal.SIGKILL else 128 + number)
            while connection.recv(1024):  # ends when no process holds the other side
                pass


@pytest.mark.network
@pytest.mark.parametrize("name", ["server", "client"])
def test_a_process_that_was_started_by_another_ends_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its files lie in its working directory
    address = f"tcp://127.0.0.1:{free_port()}"
    options = {
        "server": ["--json", "--address", address, "--server.http-address", "null"],
        "client": ["--server", address],
    }
    events: demo_processes.Events = queue.SimpleQueue()
    command = [name, "--ends-with-input", *options[name]]
    with demo_processes.Process(demo_processes.command, command, os.environ, events) as process:
        process.close_input()
        while isinstance(events.get(timeout=START_S), str):
            pass
        assert process.code == 0
