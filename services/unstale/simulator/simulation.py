"""One run in virtual time.

Clients are computed when their update is due, from the version that they were given, one by one: an update that never
arrives costs nothing, and the order of what is computed is the order of arrival, as on a server.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol, TypeVar

from unstale import flat, translate
from unstale.coordinator import actions, events, hopeless
from unstale.coordinator.machine import Coordinator
from unstale.errors import UserError
from unstale.learner import screen
from unstale.learner.learner import Learner
from unstale.learner.updates import StagedUpdate, Staging, write
from unstale.learner.versions import Version
from unstale.metrics.fairness import OwnEvaluations
from unstale.metrics.progress import Outcome, Progress, Tally
from unstale.simulator.latency import Latency
from unstale.training.evaluate import Evaluation
from unstale.training.trainer import Trainer
from unstale_proto.errors import Reason
from unstale_proto.limits import FLOAT_BYTES
from unstale_proto.messages import Message, Task, Update

Observer = Callable[[events.Event, Sequence[actions.Action]], None]


_AFTER_CLIENTS = 2**63  # a timer's place among equal times: what arrives just in time is in time
_NO_SIGNATURE = "0" * 64  # one process holds both sides, so there is nothing to compare


M = TypeVar("M", bound=Message)


class Relay(Protocol):
    """What a message goes through on its way to the other side."""

    def __call__(self, message: M) -> M: ...


def as_it_is(message: M) -> M:
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a simulation runs, all in their first state.

    coordinator: with leases that never run out, because simulated clients do not vanish. learner: keeps versions.
    evaluate: measures a version. save: is given the last version and its number. rounds: versions to make.
    evaluate_clients_every: rounds between evaluations by the clients; None for none.
    """

    coordinator: Coordinator
    learner: Learner
    staging: Staging
    trainer: Trainer
    evaluate: Callable[[Version], Evaluation]
    save: Callable[[Version, int], None]
    clients: int
    rounds: int
    evaluate_clients_every: int | None


class Simulation:
    """Runs until the coordinator finishes.

    latency: of each task. on_progress: told of every evaluation. observe: told of every event and what came of it.
    relay: what a message goes through on its way; the tests put the codec there.
    """

    def __init__(
        self,
        parts: Parts,
        latency: Latency,
        *,
        on_progress: Callable[[Progress], None],
        observe: Observer | None = None,
        relay: Relay = as_it_is,
    ) -> None:
        self._coordinator = parts.coordinator
        self._learner = parts.learner
        self._staging = parts.staging
        self._trainer = parts.trainer
        self._evaluate_model = parts.evaluate
        self._save = parts.save
        self._own_evaluations = OwnEvaluations(parts.evaluate_clients_every)
        self._payload_bytes = FLOAT_BYTES * parts.learner.row_numbers
        self._clients = parts.clients
        self._latency = latency
        self._on_progress = on_progress
        self._observe = observe
        self._relay = relay
        self._tally = Tally(parts.rounds)
        self._now_s = 0.0
        self._planned = 0
        # (due time, client id, plan number, task or timer): the plan number makes every entry differ.
        self._queue: list[tuple[float, int, int, Task | str]] = []
        self._timers: dict[str, float] = {}
        self._newest: dict[int, Task] = {}  # by client
        self._arriving: tuple[int, StagedUpdate, Update] | None = None
        self._made: events.RoundApplied | None = None
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
        """Play the run to its end. Seconds are virtual."""
        for client_id in range(self._clients):
            self._handle(events.ClientJoined(client_id=client_id, at_s=0.0))
        while self._finish is None:
            assert self._queue, "nothing is due, and the run is not over"
            self._now_s, client_id, _, what = heapq.heappop(self._queue)
            if isinstance(what, Task):
                self._arrive(client_id, what)
            elif self._timers.get(what) == self._now_s:
                del self._timers[what]
                self._handle(events.TimerFired(timer=what, at_s=self._now_s))
        return self._tally.ended(
            self._finish.reason,
            self._coordinator.version,
            self._coordinator.updates_by_outcome,
            self._learner.sent.digest,
            self._now_s,
            self._own_evaluations.fairness,
        )

    def save(self) -> None:
        """After `run`: write the last version to save_model, if that names a file; UserError when that fails."""
        self._save(self._learner.sent, self._learner.version)

    def _arrive(self, client_id: int, task: Task) -> None:
        """A client's work on a task is done: compute it, and let the server have it."""
        if task is not self._newest[client_id]:
            return  # the client dropped the work when it was given a newer task
        if not self._coordinator.awaits(client_id, task.task_id):
            self._arrive_too_late(client_id, task)
            return
        base = self._learner.base(task.version)
        buffers_b = base.buffers_b if base.buffers_b.numel() else None
        evaluation = None
        if task.evaluate:
            evaluation = self._trainer.evaluate_own(client_id, base.model_d, buffers_b)
        local = self._trainer.train(
            client_id,
            task.number,
            base.model_d,
            task.learning_rate,
            buffers_b=buffers_b,
            extra_d=base.extra_d,
        )
        if not isfinite(local.loss):
            self._trainer.drop(client_id, task.number)
            self._handle(events.TaskFailed(client_id=client_id, task_id=task.task_id, at_s=self._now_s))
            return
        update = self._relay(translate.to_update(task, local, evaluation))
        handle, row_D = self._staging.row()
        frames = [flat.to_bytes(part) for part in translate.payload_parts(local)]
        dimension = self._learner.policy.dimension
        write(row_D, frames, update.kind, update.learning_rate, dimension)
        found = screen.row_defect(row_D, dimension)
        defect = None if found is None else Reason(found)
        if defect is not None:
            self._staging.discard(handle)
            handle = -1
        self._arriving = handle, translate.to_staged(update, client_id), update
        self._handle(translate.to_update_arrived(update, client_id, handle, defect, self._now_s))

    def _arrive_too_late(self, client_id: int, task: Task) -> None:
        """The update of a task that was taken back is rejected unseen, so it need not be computed; and its base
        version may be forgotten."""
        self._handle(
            events.UpdateArrived(
                client_id=client_id,
                task_id=task.task_id,
                base_version=task.version,
                handle=-1,
                at_s=self._now_s,
            )
        )

    def _handle(self, event: events.Event) -> None:
        following: events.Event | None = event
        while following is not None:
            what_to_do = self._coordinator.handle(following)
            if self._observe is not None:
                self._observe(following, what_to_do)
            for action in what_to_do:
                self._performers[type(action)](action)
            following, self._made = self._made, None
        given_up = hopeless.sentence(self._coordinator)
        if given_up is not None:
            raise UserError(given_up)

    def _plan(self, at_s: float, client_id: int, what: Task | str) -> None:
        heapq.heappush(self._queue, (at_s, client_id, self._planned, what))
        self._planned += 1

    # --- what the coordinator wants done ---

    def _send_task(self, action: actions.SendTask) -> None:
        self._tally.started(self._now_s)
        sent = translate.to_task(
            action,
            learning_rate=self._learner.learning_rate,
            signature=_NO_SIGNATURE,
            payload_bytes=self._payload_bytes,
            evaluate=self._own_evaluations.wanted(action.client_id, action.version),
        )
        self._newest[action.client_id] = task = self._relay(sent)
        due_s = self._now_s + self._latency(action.client_id, action.number)
        self._plan(due_s, action.client_id, task)

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        if action.outcome is actions.Outcome.ACCEPTED:
            assert self._arriving is not None
            handle, staged, update = self._arriving
            self._staging.keep(handle, staged)
            self._tally.accepted()
            if update.evaluation is not None:
                self._own_evaluations.answered(
                    action.client_id, update.base_version, update.evaluation.accuracy
                )
        self._settle(action)

    def _settle(self, action: actions.Acknowledge) -> None:
        """What the client was to keep from its update is kept if that was accepted: the number of the task is its
        newest one's, because a task that another took the place of never comes this far."""
        number = self._newest[action.client_id].number
        accepted = action.first_outcome is actions.Outcome.ACCEPTED
        (self._trainer.keep if accepted else self._trainer.drop)(action.client_id, number)

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        result = self._learner.apply_round(
            taken.matrix_KD, translate.to_round(action.contributions, taken.updates)
        )
        taken.release()
        self._tally.applied(result.staleness, overflowed=result.overflowed)
        self._made = events.RoundApplied(version=result.version, at_s=self._now_s)

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._learner.forget(action.version)

    def _set_timer(self, action: actions.SetTimer) -> None:
        if action.due_s < inf:
            self._timers[action.timer] = action.due_s
            self._plan(action.due_s, _AFTER_CLIENTS, action.timer)

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self._timers.pop(action.timer, None)

    def _evaluate(self, action: actions.Evaluate) -> None:
        assert action.version == self._learner.version
        evaluation = self._evaluate_model(self._learner.sent)
        clients = self._coordinator.clients_by_state
        self._on_progress(
            self._tally.evaluated(action.version, evaluation.accuracy, evaluation.loss, clients, self._now_s)
        )

    def _end(self, action: actions.Finish) -> None:
        self._finish = action
