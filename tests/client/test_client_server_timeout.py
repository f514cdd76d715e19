"""The timeout of a silent server."""

import threading
from math import inf

import pytest
import zmq

from support.running import PATIENCE_S, small
from support.wire import welcome
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.errors import UserError
from unstale_client.server_timeout import FIRST_WORD_S, SILENCE_S, ServerTimeout
from unstale_proto import codec
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Heartbeat

SERVER = "tcp://127.0.0.1:5555"


def test_a_server_that_never_answers_gets_a_warning_and_then_a_timeout() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=30.0, at_s=100.0)
    assert server_timeout.due_s == 100.0 + FIRST_WORD_S
    assert server_timeout.warning(100.0) is None
    assert (
        server_timeout.warning(103.0)
        == f"no server answers at {SERVER} yet; retrying until 30 s have passed (client.patience_s)"
    )
    assert server_timeout.warning(104.0) is None
    assert server_timeout.due_s == 130.0
    with pytest.raises(UserError, match=rf"^no server answered at {SERVER} for 30 s; start it, or check"):
        server_timeout.warning(130.0)


def test_a_server_that_falls_silent_gets_a_warning_and_then_a_timeout() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=30.0, at_s=100.0)
    server_timeout.heard(101.0)
    server_timeout.lease_s = 10.0
    assert server_timeout.due_s == 101.0 + SILENCE_S
    warning = server_timeout.warning(121.0)
    assert warning == (
        f"no message from the server at {SERVER} for 20 s; waiting for it to come back until 30 s have passed "
        "(client.patience_s)"
    )
    assert server_timeout.due_s == 131.0
    with pytest.raises(UserError, match=rf"^no message from the server at {SERVER} for 30 s; start this"):
        server_timeout.warning(131.0)


def test_any_message_restarts_the_timeout() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=30.0, at_s=0.0)
    server_timeout.lease_s = 10.0
    assert server_timeout.warning(25.0) is not None
    server_timeout.heard(29.0)
    assert server_timeout.warning(48.0) is None
    assert server_timeout.warning(49.0) is not None
    assert server_timeout.due_s == 59.0


def test_a_server_that_answers_after_a_warning_is_back_once() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=None, at_s=0.0)
    assert server_timeout.warning(3.0) is not None
    assert server_timeout.heard(4.0) is None  # the first answer: the client logs that it has joined
    server_timeout.lease_s = 10.0
    assert server_timeout.heard(5.0) is None
    assert server_timeout.warning(25.0) is not None
    assert server_timeout.heard(40.4) == f"the server at {SERVER} is back after 35 s"
    assert server_timeout.heard(41.0) is None


def test_silence_within_the_lease_gets_no_warning() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=1.0, at_s=0.0)
    server_timeout.lease_s = 60.0
    assert server_timeout.due_s == 60.0
    assert server_timeout.warning(59.0) is None
    with pytest.raises(UserError, match=r"for 60 s; "):
        server_timeout.warning(60.0)


def test_without_a_bound_a_client_waits_indefinitely() -> None:
    server_timeout = ServerTimeout(SERVER, patience_s=None, at_s=0.0)
    bound = "client.patience_s is null; with --client.patience-s 60 a client gives up after 60 s without a message"
    assert server_timeout.warning(3.0) == f"no server answers at {SERVER} yet; retrying for ever, because {bound}"
    server_timeout.heard(4.0)
    server_timeout.lease_s = 10.0
    assert server_timeout.warning(24.0) == (
        f"no message from the server at {SERVER} for 20 s; waiting for it to come back for ever, because {bound}"
    )
    assert server_timeout.due_s == inf
    assert server_timeout.warning(1e9) is None


class VanishingServer:
    """A server that vanishes once it has welcomed a client, on a simulated clock."""

    def __init__(self, patience_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.error: BaseException | None = None
        monkeypatch.setattr("unstale_client.loop.now_s", lambda: self.now_s)
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.linger = 0
            self.address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
            settings = small(clients=1)
            self.process = ClientProcess(
                server=self.address,
                client_ids=range(1),
                prepare=lambda received: training_context_of(received, settings).workload,
                heartbeat_s=0.2,
                linger_s=0.0,
                patience_s=patience_s,
            )
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
            assert socket.poll(1000 * PATIENCE_S)
            route, _ = socket.recv_multipart()
            greeting = welcome().model_copy(update={"heartbeat_s": 0.05, "lease_s": 1.0})
            socket.send_multipart([route, codec.encode(greeting)])
            for _ in range(int(20 * PATIENCE_S)):
                if socket.poll(50):
                    break
                self.now_s += 0.05  # until the next heartbeat is due
            _, header = socket.recv_multipart()
            assert isinstance(codec.decode(header), Heartbeat)

    def _run(self) -> None:
        try:
            self.process.run()
        except UserError as error:
            self.error = error


@pytest.mark.network
def test_a_client_ends_after_the_timeout_of_a_vanished_server(monkeypatch: pytest.MonkeyPatch) -> None:
    served = VanishingServer(1000.0, monkeypatch)
    served.now_s += 1000.0
    served.thread.join(PATIENCE_S)
    assert str(served.error) == (
        f"no message from the server at {served.address} for 1000 s; "
        "start this client again when the server is back, or set client.patience_s higher"
    )


@pytest.mark.network
def test_a_client_without_a_bound_reports_that_it_waits_and_that_the_server_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = VanishingServer(None, monkeypatch)
    served.now_s += 1000.0
    for _ in range(int(20 * PATIENCE_S)):
        if "waiting for it to come back" in caplog.text:
            break
        served.thread.join(0.05)
    assert "waiting for it to come back" in caplog.text
    assert served.thread.is_alive()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(served.address)
        for _ in range(int(20 * PATIENCE_S)):
            if "is back" in caplog.text:
                break
            served.now_s += 0.05  # until the client says anything
            if socket.poll(50):
                route, _ = socket.recv_multipart()
                socket.send_multipart([route, codec.encode(Error(reason=Reason.HELLO_FIRST))])
    assert caplog.text.count(f"the server at {served.address} is back after 10") == 1
    served.process.stop()
    served.thread.join(PATIENCE_S)
    assert not served.thread.is_alive()
    assert served.error is None
