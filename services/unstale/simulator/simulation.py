"""One run in virtual time.

Clients are computed when their update comes in, from the version that they were given: an update that never arrives
costs nothing, and the order of what is computed is the order of arrival, as on a server.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import NamedTuple, Protocol

from unstale import translate
from unstale.coordinator import actions, divergence, events
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.learner.bounds import NormBounds
from unstale.learner.learner import Learner, RoundResult
from unstale.learner.row_checks import Layout, Norms
from unstale.learner.updates import RoundUpdate, Staging
from unstale.learner.versions import Version
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits
from unstale.server.update_decoder import UpdateDecoder
from unstale.simulator import corruption
from unstale.simulator.backends.backend import Backend
from unstale.simulator.encoded import Encoded
from unstale.simulator.event_queue import AFTER_CLIENTS, EventQueue
from unstale.simulator.lazy_training import LazyTraining
from unstale.simulator.network import NO_SIGNATURE, Network
from unstale.simulator.recording import Recording
from unstale.simulator.simulated_client import Relay, Traffic, as_it_is
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.scenario import Conditions
from unstale.training.evaluate import Evaluation
from unstale_proto.messages import EncodingPlan, Task, Update

log = logging.getLogger("unstale.simulator")

NOT_STAGED = -1
NO_ROW = memoryview(b"")
_OBJECTS_BEFORE_COLLECTION = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a simulation runs, all in their first state.

    coordinator: its leases may be finite; clients whose heartbeats are not played keep theirs. learner: keeps
    versions. backend: computes the clients, and is closed at the end. steps_of: local steps of a client's tasks.
    evaluate: measures a version. save: is given the last version and its number. conditions: what the scenario says of
    the run. clients, rounds, seed: of the run. evaluate_clients_every: rounds between evaluations by the clients; None
    for none. heartbeat_s, lease_s: as a server tells clients. admission: judges what updates claim, as a server does;
    None to judge norms alone, without a bound. task_timeout_s: for an answer to a task; None for ever. client_limits:
    says whom the server keeps out for a while. encoding: of payloads; None for float32.
    """

    coordinator: Coordinator
    learner: Learner
    staging: Staging
    backend: Backend
    steps_of: Callable[[int], int]
    evaluate: Callable[[Version], Evaluation]
    save: Callable[[Version, int], None]
    conditions: Conditions
    clients: int
    rounds: int
    seed: int
    evaluate_clients_every: int | None
    heartbeat_s: float
    lease_s: float
    admission: Admission | None = None
    task_timeout_s: float | None = None
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    encoding: EncodingPlan | None = None


class Watcher(Protocol):
    """Looks on while a run is played."""

    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        """A round made a version. updates: of the round, in order of arrival."""

    def evaluated(self, version: int, evaluation: Evaluation, at_s: float) -> None:
        """A version was measured. at_s: virtual time."""


class _Arriving(NamedTuple):
    """The update that the coordinator is being asked about. update: None when it was not looked at. row: its bytes as
    they are staged, empty when it is not. norms: of its vectors, None when they were not measured."""

    client_id: int
    task: Task
    handle: int = NOT_STAGED
    update: Update | None = None
    row: memoryview = NO_ROW
    norms: Norms | None = None


class Simulation:
    """Runs until the coordinator finishes.

    on_progress: told of every evaluation. observe: told of every event and what came of it. relay: what a message goes
    through on its way; the tests put the codec there. recording: writes the run down, and is closed at its end.
    watcher: looks on; None for nobody.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        on_progress: Callable[[Progress], None],
        observe: actions.Observer | None = None,
        relay: Relay = as_it_is,
        recording: Recording | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._watcher = watcher
        self._parts = parts
        self._coordinator = parts.coordinator
        self._learner = parts.learner
        self._staging = parts.staging
        self._backend = parts.backend
        self._own_evaluations = OwnEvaluations(parts.evaluate_clients_every)
        self._encoded = Encoded(parts.encoding, parts.learner)
        sent, dimension = parts.learner.sent, parts.learner.policy.dimension
        self._admission = parts.admission or Admission(NormBounds(None, clients=parts.clients))
        self._decoder = UpdateDecoder(
            parts.staging,
            signature=NO_SIGNATURE,
            encodings=[self._encoded.updates],
            layout=Layout(dimension, sent.buffers_b.numel(), 0 if sent.extra_d is None else dimension),
            admission=self._admission,
        )
        self._on_progress = on_progress
        self._observe = observe
        self._relay = relay
        self._recording = recording
        self._tally = Tally(parts.rounds)
        self._event_queue = EventQueue()
        self._training = LazyTraining(
            parts.backend, self._encoded, parts.coordinator, self._event_queue, parts.rounds
        )
        self._network = Network(
            parts.conditions.toxics,
            parts.seed,
            event_queue=self._event_queue,
            server=self,
            heartbeat_s=parts.heartbeat_s,
            lease_s=parts.lease_s,
            model_bytes=self._encoded.models.payload_bytes,
            update_bytes=self._encoded.updates.payload_bytes,
            relay=relay,
            client_limits=parts.client_limits,
        )
        self._client_limits = parts.client_limits
        self._timers: dict[str, float] = {}
        self._newest: dict[int, Task] = {}  # by client, of those who are not behind a network
        self._arriving: _Arriving
        self._made: events.RoundApplied | None = None
        self._result: RoundResult
        self._finish: actions.Finish | None = None
        self._performers: dict[type, Callable[..., None]] = {
            actions.SendTask: self._send_task,
            actions.Acknowledge: self._acknowledge,
            actions.DiscardUpdate: self._discard_update,
            actions.ApplyRound: self._apply_round,
            actions.ForgetVersion: self._forget_version,
            actions.SetTimer: self._set_timer,
            actions.CancelTimer: self._cancel_timer,
            actions.Evaluate: self._evaluate,
            actions.Finish: self._end,
        }

    def run(self) -> Outcome:
        """Play the run to its end, once. Seconds are virtual."""
        try:
            with _rare_collections():
                for client_id in range(self._parts.clients):
                    self._network.join(client_id)
                    self.handle(events.ClientJoined(client_id=client_id, at_s=0.0))
                while self._finish is None:
                    self._event_queue.advance()
        finally:
            self._backend.close()
            if self._recording is not None:
                self._recording.close()
        return self._tally.ended(
            self._finish.reason,
            self._coordinator.version,
            self._coordinator.updates_by_outcome,
            self._learner.sent.digest,
            self._event_queue.now_s,
            self._own_evaluations.fairness,
        )

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._parts.save(self._learner.sent, self._learner.version)

    @property
    def sent(self) -> Version:
        """The last version, as clients are sent it."""
        return self._learner.sent

    @property
    def traffic(self) -> Traffic:
        """What became of messages that went through toxics."""
        return self._network.traffic

    # --- what happens ---

    def handle(self, event: events.Event) -> None:
        """Tell the coordinator, and do what it wants done."""
        following: events.Event | None = event
        while following is not None:
            what_to_do = self._told(following)
            if self._observe is not None:
                self._observe(following, what_to_do)
            for action in what_to_do:
                self._performers[type(action)](action)
            if self._coordinator.consecutive_failures:
                given_up = divergence.reason(self._coordinator, self._admission.bounds.cause)
                if given_up is not None:
                    raise divergence.DivergedError(given_up)
            if isinstance(following, events.UpdateArrived) and self._client_limits.is_quarantine_due(
                following.client_id
            ):
                self._network.shut_out(following.client_id)  # before the round that this closed is a version
            following, self._made = self._made, None

    def _told(self, event: events.Event) -> list[actions.Action]:
        """What the coordinator wants done about an event, which is written down if the run is."""
        if self._recording is None:
            return self._coordinator.handle(event)
        if isinstance(event, events.RoundApplied):
            return self._recording.round_applied(event, self._result)
        if isinstance(event, events.UpdateArrived):
            _, task, _, update, row, norms = self._arriving
            return self._recording.update(event, update, row, norms, learning_rate=task.learning_rate)
        return self._recording.handle(event)

    def _done(self, client_id: int, task: Task) -> None:
        """A client whose messages take no time has finished a task."""
        if task is self._newest[client_id]:  # else it dropped the work when it was given a newer one
            self.take_update(client_id, task)

    def take_update(self, client_id: int, task: Task, damaged: InFlightMessage | None = None) -> None:
        """The update of a task comes in: compute it, and let the server have it. damaged: how it came, if it was.

        Raises RemoteContractError when it cannot be read. One of a task that was taken back is rejected unseen, so it
        need not be computed; and its base version may be forgotten.
        """
        if not self._coordinator.awaits(client_id, task.task_id):
            self._arriving = _Arriving(client_id, task)
            self.handle(
                events.UpdateArrived(
                    client_id=client_id,
                    task_id=task.task_id,
                    base_version=task.version,
                    handle=NOT_STAGED,
                    at_s=self._event_queue.now_s,
                )
            )
            return
        computed = self._training.of(client_id, task)
        local = computed.local
        if not isfinite(local.loss):
            self._fail(client_id, task)
            return
        encoding = self._encoded.updates
        update = self._relay(translate.to_update(task, local, computed.evaluation, encoding=encoding))
        frames = self._encoded.payload(client_id, task.number, local)
        if damaged is not None:
            update, frames = corruption.read(update, frames, damaged)
            self._client_limits.on_valid_message(client_id)
        handle, row, defect, norms = self._decoder.stage(client_id, update, frames)
        self._arriving = _Arriving(client_id, task, handle, update, row, norms)
        self.handle(translate.to_update_arrived(update, client_id, handle, defect, self._event_queue.now_s))
        self._training.forget(client_id, task.task_id)

    def _expire(self, client_id: int, task_id: int) -> None:
        """A client has not answered its task in time."""
        if self._coordinator.awaits(client_id, task_id):
            now_s = self._event_queue.now_s
            self.handle(events.TaskExpired(client_id=client_id, task_id=task_id, at_s=now_s))

    def _fail(self, client_id: int, task: Task) -> None:
        """Training diverged, and the client gives the task back."""
        self._training.forget(client_id, task.task_id)
        if client_id in self._network:
            self._network.takes_back(client_id, task)
        else:
            self.settle(client_id, task.number, accepted=False)
        self.handle(
            events.TaskFailed(client_id=client_id, task_id=task.task_id, at_s=self._event_queue.now_s)
        )

    def _fire(self, timer: str, due_s: float) -> None:
        if self._timers.get(timer) != due_s:
            return  # moved, or cancelled
        del self._timers[timer]
        if timer == LEASE:
            self._renew_leases()
        self.handle(events.TimerFired(timer=timer, at_s=self._event_queue.now_s))

    def _renew_leases(self) -> None:
        """Clients whose heartbeats are not played have beaten all the while."""
        for client_id in self._coordinator.leases.expired(self._event_queue.now_s):
            if not self._network.beats(client_id):
                self.handle(events.HeartbeatReceived(client_id=client_id, at_s=self._event_queue.now_s))

    # --- what the network asks ---

    def is_active(self, client_id: int) -> bool:
        """As the coordinator says."""
        return self._coordinator.is_active(client_id)

    def awaits(self, client_id: int, task_id: int) -> bool:
        """As the coordinator says."""
        return self._coordinator.awaits(client_id, task_id)

    @property
    def version(self) -> int:
        """The current one."""
        return self._coordinator.version

    def duration_s(self, client_id: int, number: int) -> float:
        """How long a task takes on a client's device."""
        return self._parts.conditions.devices.duration_s(client_id, number, self._parts.steps_of(client_id))

    def got_damaged(self, client_id: int, task: Task, damaged: InFlightMessage) -> None:
        """A client works on a model that came like this."""
        if self._coordinator.awaits(client_id, task.task_id):
            self._training.damage(client_id, task, self._encoded.damaged(task.version, damaged))

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows what became of its update: what it was to keep from it is kept if that was accepted."""
        (self._backend.keep if accepted else self._backend.drop)(client_id, number)
        self._encoded.settle(client_id, number, accepted=accepted)

    # --- what the coordinator wants done ---

    def _send_task(self, action: actions.SendTask) -> None:
        now_s, client_id = self._event_queue.now_s, action.client_id
        self._tally.started(now_s)
        if self._parts.task_timeout_s is not None:
            expires_s = now_s + self._parts.task_timeout_s
            self._event_queue.schedule(
                expires_s, AFTER_CLIENTS, partial(self._expire, client_id, action.task_id)
            )
        task = translate.to_task(
            action,
            learning_rate=self._learner.learning_rate,
            signature=NO_SIGNATURE,
            payload_bytes=self._encoded.models.payload_bytes,
            evaluate=self._own_evaluations.wanted(client_id, action.version),
        )
        if client_id in self._network:
            self._network.give(client_id, task)
            return
        self._newest[client_id] = task = self._relay(task)
        due_s = now_s + self.duration_s(client_id, task.number)
        self._event_queue.schedule(due_s, client_id, partial(self._done, client_id, task), task)

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        _, task, handle, update, _, norms = self._arriving
        self._admission.judged(action, task.version, norms)
        self._client_limits.on_verdict(action, self._event_queue.now_s)
        news = self._client_limits.model_health.take_warning(self._admission.bounds)
        if news is not None:
            log.warning("%s", news)
        if action.outcome is actions.Outcome.ACCEPTED:
            assert update is not None
            self._staging.keep(handle, translate.to_staged(update, action.client_id))
            self._tally.accepted()
            self._network.progressed()
            if update.evaluation is not None:
                self._own_evaluations.answered(
                    action.client_id, update.base_version, update.evaluation.accuracy
                )
        if action.client_id in self._network:
            self._network.tell(action.client_id, translate.to_ack(action))
        else:
            accepted = action.first_outcome is actions.Outcome.ACCEPTED
            self.settle(action.client_id, task.number, accepted=accepted)

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        updates = translate.to_round(action.contributions, taken.updates)
        result = self._learner.apply_round(taken.rows, updates)
        taken.release()
        self._result = result
        self._admission.published(result)
        if self._watcher is not None:
            self._watcher.round_applied(result, updates)
        self._tally.applied(result.staleness, overflowed=result.overflowed)
        for note in () if result.compensation is None else self._tally.news(result.compensation.notes):
            log.warning("%s", note)
        self._made = events.RoundApplied(version=result.version, at_s=self._event_queue.now_s)

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._learner.forget(action.version)
        self._encoded.forget(action.version)

    def _set_timer(self, action: actions.SetTimer) -> None:
        if action.due_s < inf:
            self._timers[action.timer] = action.due_s
            self._event_queue.schedule(
                action.due_s, AFTER_CLIENTS, partial(self._fire, action.timer, action.due_s)
            )

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self._timers.pop(action.timer, None)

    def _evaluate(self, action: actions.Evaluate) -> None:
        assert action.version == self._learner.version
        evaluation = self._parts.evaluate(self._learner.sent)
        if self._recording is not None:
            self._recording.evaluated(action.version, self._event_queue.now_s, evaluation)
        if self._watcher is not None:
            self._watcher.evaluated(action.version, evaluation, self._event_queue.now_s)
        clients = self._coordinator.clients_by_state
        self._on_progress(
            self._tally.evaluated(
                action.version, evaluation.accuracy, evaluation.loss, clients, self._event_queue.now_s
            )
        )

    def _end(self, action: actions.Finish) -> None:
        self._finish = action


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python looks for cycles less often. A run makes next to none, and to look through the objects of 100,000 clients
    takes a third of the time in which these get their first tasks."""
    often = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *often[1:])
    try:
        yield
    finally:
        gc.set_threshold(*often)
