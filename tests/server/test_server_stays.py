"""A server that stays when its run has ended: it still tells clients so, and serves its pages, until it is stopped."""

import signal
from pathlib import Path
from typing import Any

import pytest

from support.played import PlayedServer
from support.processes import Process
from support.running import until
from support.scrape import get, sample
from support.wire import RawClient
from unstale.server.commands import StopNow
from unstale_proto.messages import Bye, Stop

OPTIONS = ["--clients", "1", "--model", "logreg", "--trigger", "async", "--device", "cpu", "--rounds", "1"]
STAYING = ["--server.stay", "--server.address", "tcp://127.0.0.1:0", "--server.http-address", "127.0.0.1:0"]
STAYING += ["--server.linger-s", "0.1"]


def finished(*, stays: bool) -> PlayedServer:
    """Its one client has made the one version, and said goodbye."""
    server = PlayedServer(rounds=1, stays=stays)
    client = server.client(0)
    assert client.answer(client.task()).outcome == "accepted"
    server.compute()
    client.say(Bye())
    return server


def test_a_staying_server_has_an_outcome_after_the_run_and_ends_when_stopped() -> None:
    assert finished(stays=False).protocol.is_over
    server = finished(stays=True)
    assert server.protocol.outcome is not None
    assert server.protocol.outcome.reason == "finished"
    assert not server.protocol.is_over
    assert not server.protocol.is_finishing
    server.protocol.on_result(StopNow())
    server.protocol.flush()
    assert server.protocol.is_over
    assert server.protocol.outcome.reason == "finished"


def test_it_tells_a_client_that_comes_late_and_waits_for_nothing_meanwhile() -> None:
    server = finished(stays=True)
    outcome = server.protocol.outcome
    assert server.protocol.due_s is None
    late = server.client(0, route=b"late")
    late.join()
    assert late.hear(Stop).reason == "finished"
    late.say(Bye())
    assert late.hear(Bye)
    server.pass_time(1e6)
    assert server.protocol.due_s is None
    assert server.protocol.outcome is outcome
    assert not server.protocol.is_over


def test_a_server_that_is_stopped_before_the_end_does_not_stay() -> None:
    server = PlayedServer(rounds=2, stays=True)
    client = server.client(0)
    client.task()
    server.protocol.on_result(StopNow())
    server.protocol.flush()
    assert server.protocol.is_finishing
    client.say(Bye())
    server.compute()  # the last measurement
    assert server.protocol.is_over
    assert server.protocol.outcome is not None
    assert server.protocol.outcome.reason == "shutdown"


def event(server: Process, name: str) -> dict[str, Any]:
    while (fact := server.fact())["event"] != name:
        pass
    return fact


@pytest.mark.network
@pytest.mark.slow
def test_its_last_values_can_be_scraped_and_so_they_can_when_it_is_started_again(tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model.pt"
    begun = ["--run", str(run), "--save-model", str(model)]
    digests = []
    for is_new in (True, False):
        with Process("server", "--json", *OPTIONS, *STAYING, *begun) as server:
            listening = event(server, "listening")
            http = f"http://{listening['http_address']}"
            if is_new:
                with RawClient(listening["address"]) as client:
                    client.join()
                    task, model_d = client.task()
                    assert client.answer(task, model_d, kind="delta").outcome == "accepted"
                    assert client.hear(Stop).reason == "finished"
                    client.say(Bye())
                    assert client.hear(Bye)  # unsent messages are lost with the socket
            ended = event(server, "finished")
            digests.append(ended["model_digest"])
            assert (ended["reason"], ended["versions"]) == ("finished", 1)
            with RawClient(listening["address"], session="c" * 32) as late:
                late.say_hello()
                assert late.hear(Stop).reason == "finished"
            until(model.exists, "the model is saved")
            assert sample(http, "unstale_model_version") == 1
            assert [get(f"{http}{path}").status for path in ("/healthz", "/readyz", "/")] == [200, 200, 200]
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 0
            assert "Traceback" not in server.errors()
    assert digests[0] == digests[1]
