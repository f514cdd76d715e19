"""Server and clients as processes: waiting, notification of the end, and errors.

Source: proto/PROTOCOL.md#41-joining; proto/PROTOCOL.md#45-ending
"""

import queue
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import START_S, Process, free_port
from support.running import RunningServer, small
from support.scrape import sample
from support.wire import RawClient
from unstale.cli import main, printing
from unstale.metrics.progress import Progress
from unstale_proto.messages import Bye, Stop

pytestmark = pytest.mark.network

TRIES = 1000  # round trips; a message sent before the first of them arrives long before the last
OPTIONS = ["--clients", "1", "--model", "logreg", "--trigger", "async", "--device", "cpu"]


class Watched(RunningServer):
    """A server whose evaluations can be waited for."""

    def __init__(self, **changes: Any) -> None:
        self._told: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        super().__init__(small(**changes), self._told.put)

    def next(self) -> Progress:
        return self._told.get(timeout=START_S)

    def next_that(self, is_meant: Callable[[Progress], bool]) -> Progress:
        while not is_meant(progress := self.next()):
            pass
        return progress


@pytest.mark.slow
def test_a_client_waits_for_a_server_and_finds_the_next_one_too() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    server = {"address": address, "linger_s": 5.0}
    with Process("client", "--server", address, "--count", "2") as client:
        client.says("no server answers")  # it is up, and waits
        with Watched(rounds=10**6, evaluate_every=5, server=server) as first:
            assert first.next_that(lambda now: now.version >= 5).clients["working"] >= 1
            first.server.stop()
            assert first.end().reason == "shutdown"
        assert client.process.poll() is None
        with Watched(rounds=20, evaluate_every=20, server=server) as second:
            outcome = second.end()
            assert (outcome.reason, outcome.versions) == ("finished", 20)
            assert second.state()["clients"]["left"] == 2
        assert client.end() == 0
        assert client.errors().count("joined run") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_notifies_its_clients_and_reports_how_it_ended(number: signal.Signals) -> None:
    http = ["--server.address", "tcp://127.0.0.1:0", "--server.http-address", "127.0.0.1:0"]
    with Process("server", "--json", *OPTIONS, *http, "--server.linger-s", "60") as server:
        listening = server.fact()
        assert listening["event"] == "listening"
        with RawClient(listening["address"]) as client:
            client.join()
            task, _ = client.task()
            assert sample(f"http://{listening['http_address']}", "unstale_clients", state="working") == 1
            server.process.send_signal(number)
            stop = client.hear(Stop)
            assert (stop.reason, stop.version) == ("shutdown", task.version)
            client.say(Bye())
            facts = [server.fact()]
            while facts[-1]["event"] != "finished":
                facts.append(server.fact())
        assert (facts[-1]["reason"], facts[-1]["versions"]) == ("shutdown", 0)
        assert server.end() == 0
        assert "Traceback" not in server.errors()


def test_a_second_signal_ends_a_server_that_still_waits_for_goodbyes() -> None:
    http = ["--server.address", "tcp://127.0.0.1:0", "--server.http-address", "127.0.0.1:0"]
    with (
        Process("server", "--json", *OPTIONS, *http, "--server.linger-s", "3600") as server,
        RawClient(server.fact()["address"]) as client,
    ):
        client.join()
        client.task()
        server.process.send_signal(signal.SIGINT)
        assert client.hear(Stop).reason == "shutdown"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_is_stopped_says_goodbye_to_the_server(number: signal.Signals) -> None:
    with Watched(clients=3, min_clients=2, rounds=10**6, evaluate_every=1) as server:
        with Process("client", "--server", server.address, "--count", "2", "--first", "1") as client:
            server.next_that(lambda now: now.version >= 3)
            client.process.send_signal(number)
            assert client.end() == 0
            assert "Traceback" not in client.errors()
        with RawClient(server.address, 0) as last:
            last.join()
            last.task()
            for number in range(TRIES):  # the goodbyes come over other connections, perhaps a little later
                if sample(server.http, "unstale_clients", state="left") == 2:
                    break
                last.hears_nothing_before(number)
            assert sample(server.http, "unstale_clients", state="left") == 2


# ------------------------------------------------------------------------------------------ mistakes, each one sentence


@pytest.fixture
def _signals_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that gets so far would listen for signals, and go on to do so after the test. What it keeps lies in a
    folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(printing, "stop_on_signals", lambda stop: None)


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that a command with a mistake in it ends with."""
    assert main.run([*arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.usefixtures("_signals_as_they_are")
def test_a_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        sentence = output_of(capsys, "server", *OPTIONS, "--server.address", address)
    assert sentence == (
        f"unstale: server.address {address} is in use; stop the program that uses it, or choose another port"
    )


@pytest.mark.usefixtures("_signals_as_they_are")
def test_an_http_port_in_use_is_one_sentence_and_leaves_the_other_port_free(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--server.address", address, "--server.http-address", http]
        sentence = output_of(capsys, "server", *OPTIONS, *arguments)
    assert sentence.startswith(f"unstale: server.http_address {http} cannot be used (address already in use)")
    with RunningServer(small(server={"address": address})) as server:
        assert server.address == address


@pytest.mark.usefixtures("_signals_as_they_are")
def test_a_server_that_never_answers_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    sentence = output_of(capsys, "client", "--server", address, "--client.patience-s", "0.1")
    assert sentence == (f"unstale: no server answered at {address} for 0.1 s; start it, or check client.server")


@pytest.mark.usefixtures("_signals_as_they_are")
def test_a_client_id_that_the_run_has_not_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningServer(small()) as server:
        assert main.run(["client", "--server", server.address, "--first", "7"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "unstale: the server refuses client 7: client id 7 is not below 2, the number of clients in this run"
    )


@pytest.mark.usefixtures("_signals_as_they_are")
def test_a_superseded_client_reports_it_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(rounds=10**6, evaluate_every=1, min_clients=1)
    rivals: list[RawClient] = []

    def take_over(now: Progress) -> None:
        if now.version >= 1 and not rivals:
            rivals.append(RawClient(server.address, 0, session="f" * 32))
            rivals[0].say_hello()

    with RunningServer(settings, take_over) as server:
        code = main.run(["client", "--server", server.address])
        rivals[0].socket.close()
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "unstale: another process took over client 0; give each process ids of its own with --first"
    )
