"""The server process: parts put together, threads started and ended.

main thread: waits, and takes signals. exchange: sockets and coordinator. compute: learner and evaluation.
http: scrapes.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial

import zmq

from unstale.config import parts
from unstale.config.settings import Settings
from unstale.coordinator.actions import Observer
from unstale.coordinator.machine import Coordinator
from unstale.metrics import catalogue
from unstale.metrics.progress import Outcome, Progress
from unstale.net import files, sockets
from unstale.net.clock import now_s
from unstale.net.mailbox import Mailbox
from unstale.server.compute import Compute, frames_of
from unstale.server.exchange import Exchange, StopNow
from unstale.server.exposition import Instruments
from unstale.server.http import HttpService
from unstale.server.loop import Letter, Loop, Ping, RouterWire
from unstale.server.welcome import welcome

log = logging.getLogger("unstale.server")

PING_S = 2.0  # a thread that does not answer for so long is stuck


class Server:
    """One run. Made: everything is checked, loaded and bound. `run`: it goes on until it is over.

    settings: as resolved. on_progress: told of every evaluation, in the exchange thread, which it must not keep.
    observe: told of every event of the coordinator and what came of it, there too.
    Raises UserError for what the user can mend.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_progress: Callable[[Progress], None],
        observe: Observer | None = None,
    ) -> None:
        sockets.require_libzmq()
        files.allow_connections(settings.clients, files_each=1)
        device = parts.set_up_device(settings)
        dataset = parts.dataset(settings)
        parts.check_partition(settings, dataset)
        model = parts.model(settings, dataset, device)
        coordinator_settings = parts.coordinator_settings(settings)
        self._save = parts.saver(settings, model)
        self._learner = learner = parts.learner(settings, model, device)
        self._mailbox: Mailbox[Letter] = Mailbox()
        self._compute = Compute(
            learner, evaluate=parts.evaluation(settings, model, dataset, device), post=self._mailbox.post
        )
        self._instruments = Instruments()
        coordinator = Coordinator(coordinator_settings)
        for state in coordinator.clients_by_state:
            self._instruments.follow(catalogue.CLIENTS, (state,), partial(_in_state, coordinator, state))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = sockets.router(
            self._context, heartbeat_s=settings.server.heartbeat_s, linger_s=settings.server.linger_s
        )
        self._http: HttpService | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run_exchange, name="exchange", daemon=True)
        try:
            self.address = sockets.bind(self._socket, settings.server.address)
            self._exchange = Exchange(
                RouterWire(self._socket),
                now_s,
                coordinator=coordinator,
                staging=parts.staging(coordinator_settings, learner.row_numbers, device),
                compute=self._compute.submit,
                record=self._instruments.record_all,
                welcome=welcome(
                    settings,
                    model,
                    extra=learner.sent.extra_d is not None,
                    labels=dataset.labels_digest,
                ),
                learning_rate=learner.learning_rate,
                rounds=settings.rounds,
                frames=frames_of(learner.sent),
                sent=learner.sent,
                dimension=model.dimension,
                evaluate_clients_every=settings.evaluate_clients_every,
                linger_s=settings.server.linger_s,
                on_progress=on_progress,
                observe=observe,
            )
            self._loop = Loop(self._socket, self._mailbox, self._exchange)
            if settings.server.http_address is not None:
                self._http = HttpService(
                    settings.server.http_address,
                    self._instruments.registry,
                    healthy=self._is_healthy,
                    ready=self._is_ready,
                )
        except BaseException:
            self._close()
            raise
        self.http_address = None if self._http is None else self._http.address

    def run(self) -> Outcome:
        """Serve until the run is over, then tell how it ended. Raises what a thread died of."""
        self._compute.start()
        self._thread.start()
        self._done.wait()
        self._thread.join()
        self._compute.close()
        self._close()
        if self._error is not None:
            raise self._error
        assert self._exchange.outcome is not None
        return self._exchange.outcome

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._save(self._learner.sent, self._learner.version)

    def stop(self) -> None:
        """End the run soon, telling the clients. Any thread, signal handlers included."""
        self._mailbox.post(StopNow())

    def _run_exchange(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001  (raised by `run` in the main thread)
            self._error = error
        finally:
            self._socket.close()
            self._done.set()

    def _is_healthy(self) -> bool:
        """Whether both threads live and the exchange turns."""
        if not (self._thread.is_alive() and self._compute.is_alive()):
            return False
        ping = Ping()
        self._mailbox.post(ping)
        return ping.answered.wait(PING_S)

    def _is_ready(self) -> bool:
        """Whether clients may come."""
        return self._thread.is_alive() and not self._exchange.is_finishing

    def _close(self) -> None:
        if self._http is not None:
            self._http.close()
        self._socket.close()
        self._context.term()
        self._mailbox.close()


def _in_state(coordinator: Coordinator, state: str) -> int:
    """How many clients are in a state; a number read while the exchange thread may be writing it."""
    return coordinator.clients_by_state[state]
