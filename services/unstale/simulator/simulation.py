"""One run in virtual time: the server's executor of actions, simulated clients, and a queue of events.

Clients are computed when their update arrives, from the version of their task: an update that never arrives costs
nothing, and the order of computation is the order of arrival, as on a server.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite

from unstale import translate
from unstale.coordinator import actions, events
from unstale.coordinator.machine import LEASE
from unstale.journal.recorder import IncomingUpdate, Recorder
from unstale.learner.bounds import NormBounds
from unstale.learner.row_checks import Layout
from unstale.learner.updates import StagedUpdate
from unstale.learner.versions import Version
from unstale.log_rate_limit import about_peer
from unstale.metrics.progress import Outcome, Progress
from unstale.server.admission import Admission
from unstale.server.commands import Applied
from unstale.server.executor import ActionExecutor
from unstale.server.stats import RunStats
from unstale.server.update_decoder import UpdateDecoder
from unstale.simulator import corruption
from unstale.simulator.encoded import Encoded
from unstale.simulator.event_queue import EventQueue
from unstale.simulator.lazy_training import LazyTraining
from unstale.simulator.network import NO_SIGNATURE, Network
from unstale.simulator.parts import Parts
from unstale.simulator.recording import SimulationRecorder
from unstale.simulator.simulated_client import Relay, Traffic
from unstale.simulator.synchronous_compute import SynchronousCompute, Watcher
from unstale.simulator.undisturbed_clients import UndisturbedClients
from unstale.toxics.in_flight import InFlightMessage
from unstale.training.workload import Declined, NotTrained
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Message, Task

log = logging.getLogger("unstale.simulator")

_NOT_STAGED = -1
_OBJECTS_BEFORE_COLLECTION = 50_000


class Simulation:
    """Runs until the coordinator finishes.

    It is the outbox of the executor and the server of the simulated clients. Messages of clients that no toxic touches
    take no time and are not made; those of the others pass the `Network`.

    Args:
        parts: Of the run.
        on_progress: Receives the progress of every evaluation.
        observe: Receives every event and its actions.
        relay: Applied to every message on its way, None for nothing; tests encode and decode here.
        recorder: Records the run; closed at its end.
        watcher: Observes rounds and evaluations.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        on_progress: Callable[[Progress], None],
        observe: actions.Observer | None = None,
        relay: Relay | None = None,
        recorder: SimulationRecorder | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        coordinator, learner = parts.coordinator, parts.learner
        settings, conditions = coordinator.settings, parts.clients.conditions
        self._parts = parts
        self._coordinator, self._learner = coordinator, learner
        self._backend, self._devices = parts.clients.backend, conditions.devices
        self._steps_of = parts.clients.steps_of
        self._names_accepted_task = parts.clients.names_accepted_task
        self._client_limits = parts.client_limits
        self._relay, self._recorder = relay, recorder
        self._learning_rate = learner.learning_rate
        self._encoded = Encoded(parts.clients.encoding, learner)
        self._queue = queue = EventQueue()
        self._compute = SynchronousCompute(
            learner=learner,
            encoded=self._encoded,
            evaluate=parts.evaluate,
            clock=queue.clock,
            recorder=recorder,
            watcher=watcher,
        )
        self._stats = RunStats(settings.rounds, on_progress, parts.clients.evaluate_every, parts.main, parts.target)
        sent, dimension = learner.sent, learner.policy.dimension
        admission = parts.admission or Admission(NormBounds(None, clients=settings.clients))
        self._decoder = UpdateDecoder(
            parts.staging,
            signature=NO_SIGNATURE,
            encodings=[self._encoded.updates],
            layout=Layout(dimension, sent.buffers_b.numel(), 0 if sent.extra_d is None else dimension),
            admission=admission,
        )
        self.executor = ActionExecutor(
            clock=queue.clock,
            recorder=Recorder(coordinator, None) if recorder is None else recorder,
            outbox=self,
            compute=self._compute.commands.append,
            stats=self._stats,
            observe=observe,
            staging=parts.staging,
            admission=admission,
            client_limits=parts.client_limits,
            task_timeout_s=parts.times.task_timeout_s,
        )
        self._training = LazyTraining(self._backend, self._encoded, coordinator, queue, parts.clients.settings)
        self._undisturbed = UndisturbedClients(queue, self, parts.client_limits)
        self._network = Network(
            conditions.toxics,
            event_queue=queue,
            server=self,
            coordinator=coordinator,
            times=parts.times,
            model_bytes=self._encoded.models.payload_bytes,
            update_bytes=self._encoded.updates.payload_bytes,
            relay=relay,
            client_limits=parts.client_limits,
        )

    def run(self) -> Outcome:
        """Simulate the run to its end, once. Seconds are virtual."""
        executor, queue = self.executor, self._queue
        try:
            with _rare_collections():
                for client_id in range(self._coordinator.settings.clients):
                    self._network.join(client_id)
                    executor.handle(events.ClientJoined(client_id=client_id, at_s=0.0))
                    self._end_turn()
                while executor.finish is None:
                    # At equal times messages come first: an update that is just in time is in time.
                    if not queue.advance(executor.timers.due_s):
                        self._fire()
                    self._end_turn()
        finally:
            self._backend.close()
            if self._recorder is not None:
                self._recorder.close()
        coordinator, digest = self._coordinator, self._learner.sent.digest
        return self._stats.ended(
            executor.finish, coordinator.version, coordinator.updates_by_outcome, digest, queue.now_s
        )

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._parts.save(self._learner.sent, self._learner.version)

    @property
    def sent(self) -> Version:
        """The last version, as clients receive it."""
        return self._learner.sent

    @property
    def traffic(self) -> Traffic:
        """Counts of the messages that passed toxics."""
        return self._network.traffic

    # --- turns ---

    def _end_turn(self) -> None:
        """Send the messages that follow from the last event, execute its commands, and so on."""
        executor, commands = self.executor, self._compute.commands
        while executor.after_commit or commands:
            if executor.after_commit:
                executor.send_held()
                continue
            result = self._compute.execute(commands.popleft())
            if isinstance(result, Applied):
                executor.execute(*executor.record_round(result))
            elif result is not None:
                executor.on_evaluated(result)
        if self._recorder is not None:
            self._recorder.commit()

    def _fire(self) -> None:
        """Handle the first timer or deadline that is due."""
        now_s = self._queue.now_s
        event = next(self.executor.timers.due_events(now_s, lambda *_: False), None)
        if event is None:
            return
        if isinstance(event, events.TimerFired) and event.timer == LEASE:
            for client_id in self._coordinator.leases.expired(now_s):
                if not self._network.has_heartbeats(client_id):  # else it would have sent some
                    self.executor.handle(events.HeartbeatReceived(client_id=client_id, at_s=now_s))
        self.executor.handle(event)

    # --- the outbox of the executor ---

    def send_task(self, action: actions.SendTask) -> bool:
        """Send a task. Whether it left on a connection that may lose it."""
        client_id = action.client_id
        task = translate.to_task(
            action,
            learning_rate=self._learning_rate,
            signature=NO_SIGNATURE,
            payload_bytes=self._encoded.models.payload_bytes,
            evaluate=self._stats.own_evaluations.is_wanted(client_id, action.version),
            accepted_task=self._coordinator.accepted_task(client_id) if self._names_accepted_task else None,
        )
        if client_id in self._network.clients:
            return self._network.send_task(client_id, task)
        self._undisturbed.start(client_id, task if self._relay is None else self._relay(task))
        return False

    def bytes_with_task(self, client_id: int) -> int:  # noqa: ARG002
        """Payload bytes that go with a client's task."""
        return self._encoded.models.payload_bytes

    def acknowledge(self, action: actions.Acknowledge) -> None:
        """Send the verdict on an update."""
        if action.outcome is actions.Outcome.ACCEPTED:
            self._network.stalled_messages = 0
        if action.client_id in self._network.clients:
            self._network.send_to_client(action.client_id, translate.to_ack(action))
        else:
            self._undisturbed.acknowledge(action)

    def publish(
        self,
        version: int,  # noqa: ARG002
        frames: Sequence[memoryview],  # noqa: ARG002
        learning_rate: float,
        encoded: Sequence[memoryview] = (),  # noqa: ARG002
    ) -> None:
        """From now on tasks have this learning rate. Their model is read when their update arrives."""
        self._learning_rate = learning_rate

    def send_to_all(self, message: Message) -> None:
        """No client needs to be informed of the end of a simulation."""

    # --- the server of the clients ---

    def take_update(self, client_id: int, task: Task, damaged: InFlightMessage | None = None) -> None:
        """Compute the update of a task, and receive it.

        An update of a task that is not open is rejected unseen, so it need not be computed; its base version may be
        forgotten.

        Args:
            client_id: Of the sender.
            task: That it answers.
            damaged: The message as it arrived, None if it is undamaged.

        Raises:
            RemoteContractError: The message cannot be read.
        """
        if not self._coordinator.awaits(client_id, task.task_id):
            self._receive(self._unseen(client_id, task))
            return
        computed = self._training.of(client_id, task)
        if isinstance(computed, NotTrained):
            declined = isinstance(computed, Declined)
            level = logging.DEBUG if declined else logging.WARNING
            log.log(level, "client %d: %s", client_id, computed, extra=about_peer(client_id))
            if not declined:
                self.executor.client_error = f"client {client_id}: {str(computed)!r}"
            reason = Reason.UNAVAILABLE if declined else Reason.NON_FINITE
            self._give_back(client_id, task, reason, is_code_error=computed.is_code_error)
            return
        local = computed.local
        if not isfinite(local.loss):
            self.executor.client_error = None
            self._give_back(client_id, task, Reason.NON_FINITE)
            return
        encoding = self._encoded.updates
        update = translate.to_update(task, local, computed.evaluation, encoding=encoding)
        if self._relay is not None:
            update = self._relay(update)
        frames = self._encoded.payload(client_id, task.number, local)
        if damaged is not None:
            update, frames = corruption.read(update, frames, damaged)
            self._client_limits.on_valid_message(client_id)
        self._receive(self._decoder.stage(client_id, update, frames, self._queue.now_s))
        self._training.forget(client_id, task.task_id)

    def _unseen(self, client_id: int, task: Task) -> IncomingUpdate:
        return IncomingUpdate(
            events.UpdateArrived(
                client_id=client_id,
                task_id=task.task_id,
                base_version=task.version,
                handle=_NOT_STAGED,
                at_s=self._queue.now_s,
            ),
            StagedUpdate(
                client_id=client_id,
                task_id=task.task_id,
                base_version=task.version,
                num_examples=0,
                batch_examples=0,
                loss=0.0,
                local_rate=task.learning_rate,
            ),
        )

    def _receive(self, incoming: IncomingUpdate) -> None:
        self.executor.on_update(incoming)
        client_id = incoming.event.client_id
        if client_id in self._client_limits.suspects and self._client_limits.is_quarantine_due(client_id):
            # Before the round that this update closed is applied.
            self.executor.send_after_commit(self.quarantine, client_id)

    def _give_back(self, client_id: int, task: Task, reason: Reason, *, is_code_error: bool = False) -> None:
        """A client has no update of its task, and gives it back."""
        self._training.forget(client_id, task.task_id)
        if client_id in self._network.clients:
            self._network.on_task_given_back(client_id, task, reason)
        else:
            self.settle(client_id, task.number, accepted=False)
        error = Error(reason=reason, task_id=task.task_id, code_error=is_code_error or None)
        event = translate.to_event(error, client_id, self._queue.now_s)
        assert event is not None, "an error with a task gives it back"
        self.executor.handle(event)

    def quarantine(self, client_id: int) -> None:
        """Exclude a client for a while whose messages were refused too often in a row."""
        error = self._client_limits.quarantine(client_id, self._queue.now_s)
        if client_id in self._network.clients:
            self._network.exclude(client_id, error)
        else:
            self._undisturbed.exclude(client_id)
        self.executor.handle(events.ClientLeft(client_id=client_id, at_s=self._queue.now_s))

    def duration_s(self, client_id: int, number: int) -> float:
        """Time that a task takes on a client's device."""
        return self._devices.duration_s(client_id, number, self._steps_of(client_id))

    def on_model_damaged(self, client_id: int, task: Task, damaged: InFlightMessage) -> None:
        """The model of a task arrived damaged, as in this message."""
        if self._coordinator.awaits(client_id, task.task_id):
            self._training.damage(client_id, task, self._encoded.damaged(task.version, damaged))

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows the verdict on its update: it keeps its state of that task if the update was accepted."""
        (self._backend.keep if accepted else self._backend.drop)(client_id, number)
        self._encoded.settle(client_id, number, accepted=accepted)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for cycles less often. A run makes hardly any, and to look through the objects of 100,000 clients
    takes a third of the time of their first tasks.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
