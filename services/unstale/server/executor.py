"""What the coordinator wants done, done: commands to the compute thread at once, words to clients when they may be."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from unstale import translate
from unstale.coordinator import actions, snapshot
from unstale.journal.journal import Journal
from unstale.learner.row_checks import Norms
from unstale.learner.updates import StagedUpdate
from unstale.server.client_limits import ClientLimits
from unstale.server.commands import (
    ApplyCommand,
    CheckpointCommand,
    Command,
    EvaluateCommand,
    ForgetCommand,
    NotSaved,
    PrecomputeCommand,
    Saved,
)
from unstale.server.deadlines import Deadlines
from unstale.server.delivery import DeliveryTracker
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.state import RunState
from unstale.server.stats import ServerStats
from unstale_proto.limits import TEXT_MAX
from unstale_proto.messages import Hello, Stop, Update

log = logging.getLogger("unstale.server")

_Argument = TypeVar("_Argument")


class Arrived(NamedTuple):
    """The update that the coordinator is being asked about. handle: of its row, -1 for none. at_s: when it came. norms:
    of its vectors, None where they were not measured."""

    handle: int
    update: Update
    staged: StagedUpdate
    payload_bytes: int
    at_s: float
    norms: Norms | None


class ActionExecutor:
    """Protocol thread only.

    arrived: set before the coordinator is asked about an update. after_commit: what is to be said once all that
    happened is durable, in this order: calls, each with its argument. timers: set, and when they are due.
    commands_open: given to the compute thread and not answered. finish, finished_s: the end of the run, None before.
    wait_s: for how long the last round was open.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        state: RunState,
        *,
        compute: Callable[[Command], None],
        stats: ServerStats,
        client_limits: ClientLimits,
        sender: Sender,
        delivery: DeliveryTracker,
        deadlines: Deadlines,
        sessions: Sessions,
        prefetch: bool = False,
    ) -> None:
        """prefetch: whether stale updates are worked on before their round closes."""
        self._clock = clock
        self._coordinator = state.coordinator
        self._admission = state.admission
        self._staging = state.staging
        self._compute = compute
        self._stats = stats
        self._client_limits = client_limits
        self._sender = sender
        self._delivery = delivery
        self._deadlines = deadlines
        self._sessions = sessions
        self._prefetch = prefetch
        self.arrived: Arrived
        self.after_commit: list[tuple[Callable[[Any], object], Any]] = []
        self.timers: dict[str, float] = {}
        self.commands_open = 0
        self._has_begun = False  # tasks have been given
        self.finish: actions.Finish | None = None
        self.finished_s = 0.0
        self.wait_s = 0.0
        self._handlers: Mapping[type, Callable[..., None]] = {
            actions.SendTask: self._schedule_task,
            actions.Acknowledge: self._acknowledge,
            actions.DiscardUpdate: self._discard_update,
            actions.ApplyRound: self._apply_round,
            actions.ForgetVersion: self._forget_version,
            actions.SetTimer: self._set_timer,
            actions.CancelTimer: self._cancel_timer,
            actions.Evaluate: self._evaluate,
            actions.Finish: self._finish,
        }

    def execute(self, following: Sequence[actions.Action]) -> None:
        """Do all of it, and hold back what may not be said yet."""
        for action in following:
            self._handlers[type(action)](action)

    def send_after_commit(self, send: Callable[[_Argument], object], argument: _Argument) -> None:
        """Hold something back behind what is held already."""
        self.after_commit.append((send, argument))

    def send_task(self, action: actions.SendTask) -> None:
        """Send a task, unless it was taken back meanwhile."""
        if self._coordinator.awaits(action.client_id, action.task_id) and self._sender.send_task(action):
            self._delivery.sent(action.client_id, action.task_id)
            self._stats.model_sent(self._sender.bytes_with_task(action.client_id))

    def submit(self, command: ApplyCommand | EvaluateCommand | CheckpointCommand) -> None:
        """Have something computed that is answered by a result."""
        self.commands_open += 1
        self._compute(command)

    def checkpoint(self, journal: Journal) -> None:
        """Have the state as it is now written: the coordinator's from here, the learner's when its turn comes, which is
        before it is told to make another version. What it covers is on the disk first: no checkpoint is newer than the
        database."""
        journal.commit(durable=True)
        self.submit(
            CheckpointCommand(
                version=self._coordinator.version,
                seq=journal.begin_checkpoint(),
                coordinator=snapshot.taken(self._coordinator),
                admission=self._admission.bounds.state_dict(),
            )
        )

    def checkpointed(self, journal: Journal, item: Saved | NotSaved) -> None:
        """The compute thread has written a checkpoint, or left it out because there is no room."""
        self.commands_open -= 1
        if isinstance(item, Saved):
            journal.saved(item.version, item.seq, item.file, item.size_bytes, self._clock())
            self._stats.saved(item)
        else:
            journal.not_saved(item.version, item.error)
            self._stats.not_saved()

    def answer_hello_after_end(self, route: bytes, hello: Hello, finish: actions.Finish) -> None:
        """Answer a hello that comes behind the end, of a client that may not have heard of it. Its goodbye will come
        over this connection, unless another process has taken the client over."""
        active = self._coordinator.is_active(hello.client_id)
        if not self._sessions.is_superseded(hello, active=active):
            self._sessions.admit(hello, route)
        self._sender.send(route, translate.to_stop(finish))

    def announce_failure(self, why: str) -> None:
        """Tell every client that the run is given up. `shutdown` is for clients that know no more."""
        message = why[:TEXT_MAX]
        for route in self._sessions.routes():
            stop = Stop(reason="shutdown", version=self._coordinator.version, failed=True, message=message)
            self._sender.send(route, stop)

    def _schedule_task(self, action: actions.SendTask) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._stats.tally.started(self._clock())
        self._deadlines.given(action.client_id, action.task_id, self._clock())
        self.send_after_commit(self.send_task, action)

    def _acknowledge(self, action: actions.Acknowledge) -> None:
        arrived = self.arrived
        if action.outcome is actions.Outcome.ACCEPTED:
            self._staging.keep(arrived.handle, arrived.staged)
            self._delivery.accepted(action.client_id)
            if self._prefetch:
                self._precompute(arrived.update.base_version, action.task_id, arrived.staged)
        bounds = self._admission.bounds.bounds(arrived.update.learning_rate)
        self._stats.judged(action, arrived.update, arrived.payload_bytes, arrived.norms, bounds)
        self._admission.judged(action, arrived.update.base_version, arrived.norms)
        self._client_limits.on_verdict(action, arrived.at_s)
        news = self._client_limits.model_health.take_warning(self._admission.bounds)
        if news is not None:
            log.warning("%s", news)
        self.send_after_commit(self._sender.acknowledge, action)

    def _precompute(self, base_version: int, task_id: int, staged: StagedUpdate) -> None:
        """Have work on an update that is stale already begin before its round closes."""
        staleness = self._coordinator.version - base_version
        if staleness > 0:
            update = staged.in_round(task_id=task_id, base_version=base_version, staleness=staleness)
            self._compute(PrecomputeCommand(row_D=self._staging.newest_D, update=update))

    def _discard_update(self, action: actions.DiscardUpdate) -> None:
        self._staging.discard(action.handle)

    def _apply_round(self, action: actions.ApplyRound) -> None:
        assert self._coordinator.round_started_s is not None
        self.wait_s = self._clock() - self._coordinator.round_started_s
        taken = self._staging.take([contribution.handle for contribution in action.contributions])
        self.submit(
            ApplyCommand(round=taken, updates=translate.to_round(action.contributions, taken.updates))
        )

    def _forget_version(self, action: actions.ForgetVersion) -> None:
        self._compute(ForgetCommand(version=action.version))

    def _evaluate(self, action: actions.Evaluate) -> None:
        self._stats.on_evaluation_started(action.version, self._coordinator.clients_by_state)
        self.submit(EvaluateCommand(version=action.version))

    def _set_timer(self, action: actions.SetTimer) -> None:
        self.timers[action.timer] = action.due_s

    def _cancel_timer(self, action: actions.CancelTimer) -> None:
        self.timers.pop(action.timer, None)

    def _finish(self, action: actions.Finish) -> None:
        self.finish = action
        self.finished_s = self._clock()
        self.send_after_commit(self._send_stop_to_all, action)

    def _send_stop_to_all(self, finish: actions.Finish) -> None:
        stop = translate.to_stop(finish)
        for route in self._sessions.routes():
            self._sender.send(route, stop)
