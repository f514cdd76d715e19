"""The server process: parts put together, threads started and ended.

main thread: waits, and takes signals. exchange: sockets and coordinator. compute: learner and evaluation.
http: scrapes.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import zmq

from unstale.config.settings import Settings
from unstale.coordinator.actions import Observer
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.journal.parts import Parts
from unstale.learner.device import compute_here
from unstale.metrics import catalogue
from unstale.metrics import observe as observations
from unstale.metrics.progress import Outcome, Progress
from unstale.net import files, gate, keys, sockets
from unstale.net.gate import Gate
from unstale.net.mailbox import Mailbox
from unstale.server import guard
from unstale.server.account import Account
from unstale.server.commands import Crashed, StopNow
from unstale.server.compute import Compute
from unstale.server.exchange import Exchange
from unstale.server.exposition import Instruments
from unstale.server.http import HttpService
from unstale.server.loop import Letter, Loop, Ping, RouterWire
from unstale.server.run import prepare

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
        self._instruments = Instruments()
        self._instruments.record_all(observations.none_yet(catalogue.HANDSHAKES_REFUSED, gate.REASONS))
        self._http: HttpService | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        with ExitStack() as stack:
            self._run = run = prepare(settings)
            stack.callback(run.close)
            for state in run.coordinator.clients_by_state:
                self._instruments.follow(
                    catalogue.CLIENTS, (state,), partial(_in_state, run.coordinator, state)
                )
            if run.journal is not None:
                directory = run.journal.directory
                self._instruments.follow(catalogue.RUN_DISK, (), lambda: directory.size_bytes)
            self._mailbox: Mailbox[Letter] = Mailbox()
            stack.callback(self._mailbox.close)
            self._gate = Gate(
                settings.server.keys,
                keys.SERVER,
                "server.keys",
                refused=lambda reason: self._instruments.record(observations.handshake_refused(reason)),
                on_crash=lambda error: self._mailbox.post(Crashed(error=error)),
            )
            stack.callback(self._gate.close)
            self._compute = Compute(
                run.learner,
                evaluate=run.evaluate,
                post=self._mailbox.post,
                save=run.save,
                keep=run.keep,
                encoding=run.encoding,
            )
            self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stack.callback(self._context.term)
            self._socket = sockets.router(
                self._context, heartbeat_s=settings.server.heartbeat_s, linger_s=settings.server.linger_s
            )
            stack.callback(self._socket.close)
            self._gate.guard(self._context, self._socket)
            self.address = sockets.bind(self._socket, settings.server.address)
            self._exchange = self._make_exchange(settings, on_progress, observe)
            self._loop = Loop(
                self._socket, self._mailbox, self._exchange, clock=run.clock, key_of=self._gate.key_of
            )
            self._thread = threading.Thread(target=self._run_exchange, name="exchange", daemon=True)
            if settings.server.http_address is not None:
                self._http = HttpService(
                    settings.server.http_address,
                    self._instruments.registry,
                    healthy=self._is_healthy,
                    ready=self._is_ready,
                )
                stack.callback(self._http.close)
            self._closing = stack.pop_all()
        self.http_address = None if self._http is None else self._http.address

    def _make_exchange(
        self, settings: Settings, on_progress: Callable[[Progress], None], observe: Observer | None
    ) -> Exchange:
        run = self._run
        account = Account(
            rounds=settings.rounds,
            record=self._instruments.record_all,
            on_progress=on_progress,
            evaluate_clients_every=settings.evaluate_clients_every,
        )
        if run.journal is not None:
            account.take_up(run.journal.database)
        exchange = Exchange(
            RouterWire(self._socket),
            run.clock,
            coordinator=run.coordinator,
            staging=run.staging,
            compute=self._compute.submit,
            account=account,
            welcome=run.welcome,
            learning_rate=run.learner.learning_rate,
            frames=run.frames,
            encoded=run.encoded,
            sent=run.learner.sent,
            dimension=run.dimension,
            linger_s=settings.server.linger_s,
            return_s=sockets.RECONNECT_S_MAX + settings.server.linger_s,
            norm_max=settings.server.norm_max,
            guard=guard.configured(settings.server),
            journal=run.journal,
            parts=Parts(None if run.journal is None else run.journal.directory.transfers),
            may_speak=self._gate.may_speak,
            observe=observe,
            looks_ahead=run.learner.looks_ahead,
        )
        if run.recovered is not None:
            exchange.resume()
        return exchange

    @property
    def standing(self) -> str:
        """What is to come, in a few words for people."""
        coordinator = self._run.coordinator
        if coordinator.phase is Phase.FINISHED:
            return f"the run is finished at version {coordinator.version}; begin another one with --run"
        if coordinator.phase is Phase.GATHERING:
            return f"waiting for {coordinator.settings.clients_to_start} clients"
        return f"going on at version {coordinator.version}"

    def run(self) -> Outcome:
        """Serve until the run is over, then tell how it ended. Raises what a thread died of."""
        self._compute.start()
        self._thread.start()
        self._done.wait()
        self._thread.join()
        self._compute.close()
        self._closing.close()
        if self._error is not None:
            raise self._error
        assert self._exchange.outcome is not None
        return self._exchange.outcome

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._run.save_model(self._run.learner.sent, self._run.learner.version)

    def stop(self) -> None:
        """End the run soon, telling the clients. Any thread, signal handlers included."""
        self._mailbox.post(StopNow())

    def _run_exchange(self) -> None:
        try:
            compute_here()
            self._loop.run()
        except BaseException as error:  # noqa: BLE001  (raised by `run` in the main thread)
            self._error = error
        finally:
            self._gate.close()  # before the socket that it guards
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


def _in_state(coordinator: Coordinator, state: str) -> int:
    """How many clients are in a state; a number read while the exchange thread may be writing it."""
    return coordinator.clients_by_state[state]
