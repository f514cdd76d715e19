"""An injector between scripted clients and a scripted server, on real connections."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
import zmq

from support.running import PATIENCE_S
from support.wire import RawClient, welcome
from unstale.config import Settings
from unstale.injector.numbers import Numbers
from unstale.injector.service import Injector
from unstale_proto import codec
from unstale_proto.messages import Bye, Heartbeat, Hello, Message, Task

SIGNATURE = "0" * 64


class ScriptedServer:
    """A ROUTER. It identifies the connection of a client by its hello."""

    def __init__(self) -> None:
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.routes: dict[int, bytes] = {}

    def receives_bytes(self) -> list[bytes]:
        """The next message: route, header, payload."""
        assert self.socket.poll(PATIENCE_S * 1000), "the server receives no message"
        return self.socket.recv_multipart()

    def receives(self) -> Message:
        route, header, *_ = self.receives_bytes()
        message = codec.decode(header)
        if isinstance(message, Hello):
            self.routes[message.client_id] = route
        return message

    def sends(self, client_id: int, message: Message, frames: Sequence[bytes] = ()) -> None:
        self.socket.send_multipart([self.routes[client_id], codec.encode(message), *frames])

    def gives(self, client_id: int, task_id: int, version: int = 0, frames: Sequence[bytes] = (bytes(4),)) -> None:
        """A task."""
        given = Task(
            task_id=task_id,
            number=task_id - 1,
            version=version,
            learning_rate=0.1,
            signature=SIGNATURE,
            payload_bytes=max(4, sum(map(len, frames))),
        )
        self.sends(client_id, given, frames)


class RunningInjector:
    """An injector that runs within a context, between clients and a scripted server."""

    def __init__(self, settings: Settings, server: ScriptedServer) -> None:
        self.server = server
        self.injector = Injector(settings)
        self.address = self.injector.address
        self.http = f"http://{self.injector.http_address}"
        self._stack = ExitStack()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.end: Numbers | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> "RunningInjector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.stop()

    def stop(self) -> Numbers | None:
        self.injector.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the injector does not end"
        if self.error is not None:
            raise self.error
        return self.end

    def numbers(self) -> Numbers:
        """Its current numbers."""
        from unstale.injector.calls import run_in_thread

        assert self.injector._proxy is not None
        numbers: Numbers = run_in_thread(self.injector._queue, self.injector._proxy.numbers)
        return numbers

    def until(self, what: Callable[[Numbers], bool]) -> Numbers:
        """Its numbers, once they satisfy the condition."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.005)):
            if what(numbers := self.numbers()):
                return numbers
            pause.wait(0.005)
        raise AssertionError(f"timeout: {numbers}")

    def client(self, client_id: int = 0) -> RawClient:
        """A client that has sent nothing yet."""
        return self._stack.enter_context(RawClient(self.address, client_id))

    def joined(self, client_id: int = 0) -> RawClient:
        """A client after its hello and its welcome."""
        client = self.client(client_id)
        client.say_hello()
        hello = self.server.receives()
        assert isinstance(hello, Hello), hello
        self.server.sends(client_id, welcome(client_id=client_id))
        assert client.hear_any()[0].type == "welcome"
        return client

    def server_receives_until_bye(self, client: RawClient) -> list[Message]:
        """All messages at the server until the client's bye, which is sent now. (The toxics of the tests pass byes.)"""
        client.say(Bye())
        heard: list[Message] = []
        while not isinstance(message := self.server.receives(), Bye):
            heard.append(message)
        return heard

    def client_receives_until_beat(self, client: RawClient, client_id: int = 0) -> list[Message]:
        """All messages at a client until a heartbeat numbered 999, which the server sends now."""
        self.server.sends(client_id, Heartbeat(number=999, version=0))
        heard: list[Message] = []
        while not isinstance(message := client.hear_any()[0], Heartbeat) or message.number != 999:
            heard.append(message)
        return heard

    def _run(self) -> None:
        try:
            self.end = self.injector.run()
        except BaseException as error:  # noqa: BLE001  (raised in the test's own thread)
            self.error = error


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    yield made
    made.socket.close()


Inject = Callable[..., RunningInjector]


@pytest.fixture
def inject(server: ScriptedServer, tmp_path: Path) -> Iterator[Inject]:
    """Start an injector: `inject({"type": "drop"}, ...)`. changes: keys of the section."""
    with ExitStack() as stack:

        def start(*toxics: dict[str, Any], clients: int = 4, **changes: Any) -> RunningInjector:
            name = None
            if toxics:
                file = tmp_path / "scenario.yaml"
                file.write_text(yaml.safe_dump({"groups": [{"name": "all", "toxics": list(map(deepcopy, toxics))}]}))
                name = str(file)
            section = {
                "address": "tcp://127.0.0.1:0",
                "http_address": "127.0.0.1:0",
                "upstream": server.address,
                **changes,
            }
            settings = Settings(clients=clients, injector=section, scenario={"name": name})
            return stack.enter_context(RunningInjector(settings, server))

        yield start
