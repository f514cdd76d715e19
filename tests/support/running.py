"""Real servers on loopback, in a thread of the test, on ports that the system chooses."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from unstale import flat
from unstale.config import Settings
from unstale.coordinator.actions import Observer
from unstale.metrics.progress import Outcome, Progress
from unstale.server.service import Server
from unstale_proto.limits import HEADER_BYTES_MAX

PATIENCE_S = 30.0  # a longer wait has failed; it is no measurement

SMALL: dict[str, Any] = {
    "clients": 2,
    "rounds": 3,
    "evaluate_every": 1000,
    "device": "cpu",
    "model": {"name": "logreg"},  # 650 parameters on digits
    "partition": {"name": "iid"},
    "trigger": {"name": "async"},
    "policy": {"name": "fedbuff"},
    "training": {"name": "gradient", "learning_rate": 0.5, "batch_size": 8},
    "run": {"durability": "off"},
}
SMALL_SERVER: dict[str, Any] = {
    "gateways": int(os.environ.get("GATEWAYS", "0")),  # `make test-gateways`
    "address": "tcp://127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "linger_s": 0.1,
    "retry_s": 3600.0,  # a refused client gets no other task during a test
}


def until(holds: Callable[[], object], what: str = "") -> None:
    """Poll a condition. what: its description, for the message on a timeout."""
    pause = threading.Event()
    for _ in range(int(20 * PATIENCE_S)):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError(f"timeout: {what}")


def small(*, server: dict[str, Any] | None = None, **changes: Any) -> Settings:
    """Settings of a cheap run. changes: keys at the top. server: keys of that group."""
    return Settings(**{**SMALL, **changes, "server": {**SMALL_SERVER, **(server or {})}})


IN_PROCESS: dict[str, Any] = {"gateways": 0}
"""Of a server whose sockets a test looks at."""


class RunningServer:
    """A server that runs within a context. At its end the server is stopped, and its exception is raised."""

    def __init__(
        self, settings: Settings, on_progress: Callable[[Progress], None] | None = None, observe: Observer | None = None
    ) -> None:
        self.progress: list[Progress] = []
        self._threads_before = torch.get_num_threads()  # a server sets it for the whole process
        self.server = Server(settings, on_progress=on_progress or self.progress.append, observe=observe)
        self.address = self.server.address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()
        self._thread.join(PATIENCE_S)
        torch.set_num_threads(self._threads_before)
        assert not self._thread.is_alive(), "the server does not end"
        if self._error is not None and error is None:
            raise self._error

    def end(self, patience_s: float = PATIENCE_S) -> Outcome:
        """Wait until the run is over."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "the run does not end"
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def forgive(self) -> None:
        """Drop its exception, which was expected."""
        self._error = None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def allow_messages_of(self, payload_bytes: int) -> None:
        """Let clients send longer messages than the run needs, with sockets `IN_PROCESS`.

        A connection that holds more than one message is cut, but only if the server sees it during the transfer, which
        depends on time.
        """
        self.server._port._limiter.table.message_bytes_max = HEADER_BYTES_MAX + payload_bytes

    @property
    def http(self) -> str:
        """URL without a path."""
        return f"http://{self.server.http_address}"

    def state(self) -> dict[str, Any]:
        """The state that a refused message must leave unchanged; read between two messages of the test."""
        coordinator = self.server._protocol._coordinator
        return {
            "version": coordinator.version,
            "digest": flat.digest(self.server._compute.learner.model_d),
            "accepted": coordinator.accepted,
            "pending": len(coordinator.pending),
            "outstanding": coordinator.membership.outstanding,
            "clients": coordinator.clients_by_state,
            "tasks_given": coordinator.tasks.count,
            "staged": sum(len(block.handles) for block in self.server._run.staging._waiting),
        }

    def _run(self) -> None:
        try:
            self._outcome = self.server.run()
        except BaseException as error:  # noqa: BLE001  (raised in the test's own thread)
            self._error = error
