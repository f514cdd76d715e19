"""The server process: parts put together, threads started and ended.

main thread: waits, and takes signals. protocol: sockets and coordinator. compute: learner. http: scrapes.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from math import nan

from unstale import translate
from unstale.config.metrics import target
from unstale.config.settings import APP, Settings
from unstale.config.workspace import Workspace
from unstale.coordinator.actions import Observer
from unstale.coordinator.membership import State
from unstale.coordinator.phase import Phase
from unstale.gateway.port import Port, PortSettings
from unstale.gateway.remote import Callbacks, GatewayPort
from unstale.gateway.router import RouterPort
from unstale.journal.disk import free_bytes
from unstale.learner.device import compute_here
from unstale.learner.versions import Version
from unstale.metrics import catalogue, process
from unstale.metrics import observe as observations
from unstale.metrics.http import PING_S, HttpService
from unstale.metrics.instruments import Instruments
from unstale.metrics.observe import Observation
from unstale.metrics.progress import Outcome, Progress
from unstale.net import connections, zap
from unstale.net.connections import MESSAGE_TOO_LONG, SPARE_STRANGERS, TOO_MANY_FRAMES, ConnectionLimits
from unstale.net.memory import bytes_max_by_default
from unstale.server import client_limits
from unstale.server.commands import ConnectionCut, ConnectionLost, Crashed, QueueItem, StopNow
from unstale.server.compute import Compute
from unstale.server.loop import Loop
from unstale.server.pages import Pages
from unstale.server.protocol import ServerProtocol
from unstale.server.run import prepare
from unstale.server.state import ProtocolSettings
from unstale.server.stats import ServerStats
from unstale.server.status import Live, Status
from unstale.trackers.tracking import Tracking, check_is_stored
from unstale_client.net import files, sockets
from unstale_client.net.wakeable_queue import Ping, WakeableQueue

log = logging.getLogger("unstale.server")


class Server:
    """One run. Made: everything is checked, loaded and bound, or raises UserError. `run`: it goes on until it is over.

    on_progress, observe: called in the protocol thread, which they must not keep. workspace: of the settings, if it was
    made before.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_progress: Callable[[Progress], None],
        observe: Observer | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        sockets.require_libzmq()
        of_one_socket = files.share_of_one(settings.clients, settings.server.gateways)
        files.allow_connections(of_one_socket, files_each=1)
        files.warn(log, files.backlog_shortage(of_one_socket, sockets.BACKLOG))
        self._settings = settings
        self._stays = settings.server.stay
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._instruments = Instruments(catalogue.CATALOGUE)
        self._instruments.record_all(observations.none_yet(catalogue.HANDSHAKES_REFUSED, zap.REASONS))
        self._instruments.record_all(observations.none_yet(catalogue.CONNECTIONS_CUT, connections.REASONS))
        self._instruments.record_all(observations.none_yet(catalogue.TASKS_GIVEN_BACK, [translate.CODE_ERROR]))
        process.describe(self._instruments)
        self._tracking = self._make_tracking()
        with ExitStack() as stack:
            self._run = run = prepare(settings, workspace)
            if run.journal is not None:
                stack.callback(run.journal.close)
            about = self._about()
            self._watch(about)
            self._status = Status(
                {
                    **about,
                    "rounds": settings.rounds,
                    "clients": settings.clients,
                    "clients_to_start": run.coordinator.settings.clients_to_start,
                    "evaluate_every": settings.evaluate_every,
                },
                clock=run.clock,
                main=run.main,
            )
            self._queue: WakeableQueue[QueueItem | Ping] = WakeableQueue()
            stack.callback(self._queue.close)
            self._compute = Compute(
                learner=run.learner,
                evaluate=run.evaluate,
                post=self._queue.post,
                save=run.save,
                keep=None if run.journal is None else run.journal.keep_made,
                encoding=run.encoding,
            )
            self._port = self._make_port()
            stack.callback(self._port.close)
            self.address = self._port.address
            self._protocol = self._make_protocol(on_progress, observe)
            self._thread = threading.Thread(target=self._run_protocol, name="protocol", daemon=True)
            self.http_address = self._serve_pages(stack)
            self._closing = stack.pop_all()

    def _make_tracking(self) -> Tracking:
        """The trackers of the settings. Raises UserError."""
        chosen, instruments = self._settings.trackers, self._instruments
        check_is_stored(self._settings)
        instruments.record_all(observations.none_yet(catalogue.TRACKER_FAILURES, [one["name"] for one in chosen]))
        return Tracking(chosen, lambda name: instruments.record(observations.tracker_failed(name)))

    def _serve_pages(self, stack: ExitStack) -> str | None:
        """Serve metrics, health and the status page; the address, None where the settings have none."""
        if self._settings.server.http_address is None:
            return None
        pages = Pages(self._status, self._live)
        service = HttpService(
            self._settings.server.http_address,
            self._instruments.registry,
            key="server.http_address",
            pages=pages.routes,
            healthy=self._is_healthy,
            ready=self._is_ready,
            alarm=self._alarm,
        )
        stack.callback(service.close)
        stack.callback(pages.close)
        return service.address

    def _about(self) -> dict[str, str]:
        """What runs, by the labels of `unstale_run_info`."""
        parts = ("policy", "compensator", "trigger", "selector", "model", "data", "training")
        return {
            "run": self._run.welcome.run_id,
            **{part: getattr(self._settings, part).name for part in parts},
            **({"training": APP} if self._settings.is_app else {}),
            "device": str(self._run.learner.model_d.device),
        }

    def _watch(self, about: Mapping[str, str]) -> None:
        """Report what runs, and register the metrics that are read on demand."""
        instruments, coordinator, journal = self._instruments, self._run.coordinator, self._run.journal
        labels = tuple(about[label] for label in catalogue.RUN_INFO.labels)
        rounds = self._settings.rounds
        instruments.record_all(observations.run_begins(labels, rounds=rounds, version=coordinator.version))
        # Numbers that are read while the protocol thread may be writing them.
        for state in State:
            count = partial(coordinator.membership.counts.__getitem__, state)
            instruments.follow(catalogue.CLIENTS, (state.name.lower(),), count)
        instruments.follow(catalogue.UPDATES_PENDING, (), lambda: len(coordinator.pending))
        if journal is None:
            instruments.record(Observation(catalogue.RUN_DISK_FREE, nan))
            return
        directory = journal.directory
        journal.on_commit = lambda seconds: instruments.record(observations.committed(seconds))
        instruments.follow(catalogue.RUN_DISK, (), lambda: directory.size_bytes)
        instruments.follow(catalogue.RUN_DISK_FREE, (), lambda: free_bytes(directory.path))

    def _make_port(self) -> Port:
        settings = self._settings.server
        strangers_max = settings.strangers_max
        port_settings = PortSettings(
            address=settings.address,
            keys=settings.keys,
            heartbeat_s=settings.heartbeat_s,
            linger_s=settings.linger_s,
            limits=ConnectionLimits(
                strangers_max=self._settings.clients + SPARE_STRANGERS if strangers_max is None else strangers_max,
                connections_max=files.connections_max(),
                hello_s=settings.hello_s,
                unread_bytes_max=settings.unread_bytes_max,
                messages_ahead=sockets.RECEIVE_QUEUE,
            ),
            memory_bytes_max=settings.memory_bytes_max or bytes_max_by_default(),
            update_bytes_max=4 * self._run.learner.row_numbers,
        )
        port: Port
        if settings.gateways == 0:
            port = RouterPort(
                port_settings,
                speaks=lambda route: self._protocol.speaks(route),
                payload_bytes_max=lambda route: self._protocol.payload_bytes_max(route),
                on_cut=self._connection_was_cut,
                on_refused=self._handshake_was_refused,
                on_crash=self._crashed,
            )
        else:
            port = GatewayPort(
                port_settings,
                settings.gateways,
                Callbacks(
                    speaks=lambda route: self._protocol.speaks(route),
                    on_lost=lambda route, delivery: self._queue.post(ConnectionLost(route, delivery)),
                    on_cut=self._connection_was_cut,
                    on_refused=self._handshake_was_refused,
                    on_ended=lambda: self._instruments.record(Observation(catalogue.GATEWAYS_ENDED, 1)),
                    on_crash=self._crashed,
                ),
            )
        self._instruments.follow(catalogue.CONNECTIONS, ("client",), lambda: port.counts().clients)
        self._instruments.follow(catalogue.CONNECTIONS, ("stranger",), lambda: port.counts().strangers)
        self._instruments.follow(catalogue.ADDRESSES_LIMITED, (), lambda: port.counts().addresses_limited)
        return port

    def _handshake_was_refused(self, reason: str) -> None:
        self._instruments.record(observations.handshake_refused(reason))

    def _crashed(self, error: BaseException) -> None:
        """A thread ended with this exception. Any thread."""
        self._queue.post(Crashed(error=error))

    def _connection_was_cut(self, route: bytes | None, reason: str) -> None:
        """In the limiter's thread. A client whose message was too long would send another one after it reconnects."""
        self._instruments.record(observations.connection_cut(reason))
        if route is not None and reason in (MESSAGE_TOO_LONG, TOO_MANY_FRAMES):
            self._queue.post(ConnectionCut(route))

    def _make_protocol(self, on_progress: Callable[[Progress], None], observe: Observer | None) -> ServerProtocol:
        run, settings = self._run, self._settings.server
        stats = ServerStats(
            main=run.main,
            target=target(self._settings),
            rounds=self._settings.rounds,
            record=self._instruments.record_all,
            on_progress=on_progress,
            evaluate_clients_every=self._settings.evaluate_clients_every,
            status=self._status,
        )
        if run.journal is not None:
            stats.restore(run.journal.database)
        self._instruments.follow_all(stats.gauges)
        protocol = ServerProtocol(
            ProtocolSettings(
                linger_s=settings.linger_s,
                return_s=sockets.RECONNECT_S_MAX + settings.linger_s,
                task_timeout_s=settings.task_timeout_s,
                prefetches=run.learner.prefetches,
                stays=settings.stay,
                client_limits=client_limits.configured(settings),
                may_speak=self._port.may_speak,
                owner_of=self._port.owner_of,
            ),
            run.state,
            self._port,
            clock=run.clock,
            compute=self._compute.submit,
            stats=stats,
            observe=observe,
        )
        if run.recovered is not None:
            protocol.resume()
        return protocol

    @property
    def standing(self) -> str:
        """The next step of the run, for people."""
        coordinator = self._run.coordinator
        if coordinator.phase is Phase.FINISHED:
            return f"the run is finished at version {coordinator.version}; begin another one with --run"
        if coordinator.phase is Phase.GATHERING:
            return f"waiting for {coordinator.settings.clients_to_start} clients"
        return f"going on at version {coordinator.version}"

    def run(self) -> Outcome:
        """Serve until the run is over; its outcome. Re-raises what ended a thread. `stay` follows with server.stay."""
        self._compute.start()
        self._thread.start()
        path = None if self._run.journal is None else self._run.journal.directory.path
        with self._tracking.of(path, "" if path is None else path.resolve().name):
            self._done.wait()
        if not self._stays or self._error is not None:
            self.stay()
        assert self._protocol.outcome is not None
        return self._protocol.outcome

    def stay(self) -> None:
        """After `run`: serve the status page, and tell clients of the end, until `stop`. Raises as `run`."""
        self._thread.join()
        self._compute.close()
        self._closing.close()
        if self._error is not None:
            raise self._error

    @property
    def sent(self) -> Version:
        """After `run`: the last version."""
        return self._run.learner.sent

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._run.save_model(self._run.learner.sent, self._run.learner.version)

    def stop(self) -> None:
        """End the run soon, telling the clients. Any thread, signal handlers included."""
        self._queue.post(StopNow())

    def _run_protocol(self) -> None:
        try:
            compute_here()
            loop = Loop(port=self._port, queue=self._queue, protocol=self._protocol, clock=self._run.clock)
            loop.run(ended=self._done.set)
        except BaseException as error:  # noqa: BLE001  (raised by `run` in the main thread)
            self._error = error
        finally:
            self._port.close()
            self._done.set()

    def _is_healthy(self) -> bool:
        """Whether both threads are alive and the server protocol answers."""
        if not (self._thread.is_alive() and self._compute.is_alive()):
            return False
        ping = Ping()
        self._queue.post(ping)
        return ping.answered.wait(PING_S)

    def _is_ready(self) -> bool:
        """Whether clients may come, and their updates can be stored."""
        journal = self._run.journal
        has_room = journal is None or journal.disk_space.refusal() is None
        return self._thread.is_alive() and not self._protocol.is_finishing and has_room

    def _alarm(self) -> str | None:
        """A condition that needs the operator, None for none. Any thread."""
        journal = self._run.journal
        return None if journal is None else journal.disk_space.alarm()

    def _live(self) -> Live:
        """State of the coordinator; read while the protocol thread may be writing it."""
        coordinator = self._run.coordinator
        return Live(
            at_s=self._run.clock(),
            phase=coordinator.phase,
            version=coordinator.version,
            clients=coordinator.clients_by_state,
            updates=coordinator.updates_by_outcome,
            pending=len(coordinator.pending),
            alarm=self._alarm(),
        )
