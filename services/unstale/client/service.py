"""The client process: its loop, the worker that trains, metrics and health checks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from unstale.client.stats import ClientStats
from unstale.client.worker import Durations, Worker
from unstale.metrics import catalogue, process
from unstale.metrics.http import PING_S, HttpService
from unstale.metrics.instruments import Instruments
from unstale.training.workload import Workload
from unstale_client.jobs import Result
from unstale_client.loop import ClientLoop
from unstale_client.net.clock import now_s
from unstale_client.net.keys import Identity
from unstale_client.outbox import Outbox
from unstale_client.session import State
from unstale_proto.messages import Welcome


@dataclass(kw_only=True, eq=False)
class ClientProcess:
    """Hosts clients until the run is finished or `stop` is called."""

    server: str
    client_ids: range
    prepare: Callable[[Welcome], Workload]  # as in `Worker`
    heartbeat_s: float  # this and the next five as in `ClientLoop`
    linger_s: float
    patience_s: float | None = None
    outbox: Outbox | None = None
    identity: Identity | None = None
    durations: Callable[[Welcome], Durations] | None = None  # this and the next one as in `Worker`
    task_timeout_s: float | None = None
    http_address: str | None = None  # HOST:PORT of metrics and health checks; port 0 is replaced by a free one

    def __post_init__(self) -> None:
        instruments = Instruments(catalogue.CLIENT_CATALOGUE)
        process.describe(instruments)
        self._loop = ClientLoop(
            server=self.server,
            client_ids=self.client_ids,
            worker=self._make_worker,
            heartbeat_s=self.heartbeat_s,
            linger_s=self.linger_s,
            patience_s=self.patience_s,
            outbox=self.outbox,
            identity=self.identity,
            observer=ClientStats(instruments.record_all, now_s),
        )
        self._describe_sessions(instruments)
        self._http = None
        if self.http_address is not None:
            self._http = HttpService(
                self.http_address,
                instruments.registry,
                key="client.http_address",
                healthy=lambda: self._loop.answers(PING_S),
                ready=self._is_ready,
            )
            self.http_address = self._http.address

    def _make_worker(self, post: Callable[[Result], None]) -> Worker:
        self._worker = Worker(self.prepare, post, self.durations, self.outbox, self.task_timeout_s)
        return self._worker

    def _describe_sessions(self, instruments: Instruments) -> None:
        sessions = self._loop.sessions
        for state in State:
            instruments.follow(
                catalogue.CLIENT_SESSIONS,
                (state.value,),
                partial(lambda of: sum(session.state is of for session in sessions), state),
            )
        instruments.follow(
            catalogue.CLIENT_UPDATES_KEPT, (), lambda: sum(session.unacknowledged for session in sessions)
        )

    def _is_ready(self) -> bool:
        """Whether each client is in the run, or has ended."""
        return all(session.state in (State.IN, State.OVER) for session in self._loop.sessions)

    def stop(self) -> None:
        """End soon, with a goodbye to the server. Any thread, signal handlers included."""
        self._loop.stop()

    def run(self) -> None:
        """Work until the end.

        Raises UserError when the server refuses a client, or is silent for too long, and HangingError when a task still
        runs that exceeds its time limit twice.
        """
        try:
            self._loop.run()
            if self._worker.error is not None:  # the loop was ending already
                raise self._worker.error
        finally:
            if self._http is not None:
                self._http.close()
