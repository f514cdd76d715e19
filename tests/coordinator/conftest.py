"""A driver in place of the shell of a coordinator; events and actions are short words.

`driver.update(0)` is the valid update of client 0 for its open task. Every call returns the actions as text:

    task 0 #4 v1 n1              assign client 0 task 4 on version 1, its second (n counts from 0)
    ack 0 #4 accepted            or `rejected non-finite`, `duplicate of accepted`, `duplicate of rejected x`
    discard 7                    release the staged update of handle 7
    round v1: 0+0 2+1            make version 2 from 1: client 0 with staleness 0, client 2 with staleness 1
    forget v0, evaluate v2, set lease 10, cancel retry, finish v3 shutdown

Handles count up from 1 with every update that is staged. Invariants are checked after every event.
"""

from typing import Any

import pytest

from support import coordinator_invariants as invariants
from unstale.coordinator import actions, events
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.settings.learning import SelectorSettings, TriggerSettings


def as_text(action: actions.Action) -> str:
    match action:
        case actions.SendTask():
            return f"task {action.client_id} #{action.task_id} v{action.version} n{action.number}"
        case actions.Acknowledge():
            words = ["ack", str(action.client_id), f"#{action.task_id}", action.outcome.value]
            if action.outcome is actions.Outcome.DUPLICATE:
                words += ["of", action.first_outcome.value]
            else:
                assert action.first_outcome is action.outcome
            return " ".join(words if action.reason is None else [*words, str(action.reason)])
        case actions.DiscardUpdate():
            return f"discard {action.handle}"
        case actions.ApplyRound():
            members = [f" {c.client_id}+{c.staleness}" for c in action.contributions]
            return f"round v{action.version}:{''.join(members)}"
        case actions.ForgetVersion():
            return f"forget v{action.version}"
        case actions.SetTimer():
            return f"set {action.timer} {action.due_s:g}"
        case actions.CancelTimer():
            return f"cancel {action.timer}"
        case actions.Evaluate():
            return f"evaluate v{action.version}"
        case actions.Finish():
            return f"finish v{action.version} {action.reason}"


class Driver:
    def __init__(self, settings: CoordinatorSettings) -> None:
        self.coordinator = Coordinator(settings)
        self.now_s = 0.0
        self.handles = 0
        self.last: list[actions.Action] = []

    def at(self, now_s: float) -> "Driver":
        """Set the time of the following events."""
        self.now_s = now_s
        return self

    def handle(self, event: events.Event) -> list[str]:
        self.last = self.coordinator.handle(event)
        invariants.check(self.coordinator)
        return [as_text(action) for action in self.last]

    def join(self, *client_ids: int, **fields: Any) -> list[str]:
        transcript = []
        for client_id in client_ids:
            transcript += self.handle(events.ClientJoined(client_id=client_id, at_s=self.now_s, **fields))
        return transcript

    def start(self) -> list[str]:
        """All clients join. Returns the actions without the lease timer."""
        transcript = self.join(*range(self.coordinator.settings.clients))
        return [words for words in transcript if not words.startswith("set lease")]

    def leave(self, client_id: int) -> list[str]:
        return self.handle(events.ClientLeft(client_id=client_id, at_s=self.now_s))

    def heartbeat(self, client_id: int) -> list[str]:
        return self.handle(events.HeartbeatReceived(client_id=client_id, at_s=self.now_s))

    def update(
        self, client_id: int, task_id: int | None = None, base_version: int | None = None, **fields: Any
    ) -> list[str]:
        client = self.coordinator.membership.clients[client_id]
        self.handles += 1
        return self.handle(
            events.UpdateArrived(
                client_id=client_id,
                task_id=client.tasks.open_id if task_id is None else task_id,
                base_version=client.base_version if base_version is None else base_version,
                handle=fields.pop("handle", self.handles),
                at_s=self.now_s,
                **fields,
            )
        )

    def updates(self, *client_ids: int) -> list[str]:
        """Valid updates, one after the other. Returns the actions without acknowledgements."""
        transcript = [words for client_id in client_ids for words in self.update(client_id)]
        return [words for words in transcript if not words.startswith("ack")]

    def refuse(self, client_id: int) -> list[str]:
        """An update with a defect and without a staged row. Returns the actions without the acknowledgement."""
        transcript = self.update(client_id, handle=-1, defect="non-finite")
        assert transcript[0].endswith("rejected non-finite")
        return transcript[1:]

    def fail(self, client_id: int, task_id: int | None = None) -> list[str]:
        return self.handle(
            events.TaskFailed(client_id=client_id, task_id=self._open_id(client_id, task_id), at_s=self.now_s)
        )

    def decline(self, client_id: int, task_id: int | None = None) -> list[str]:
        return self.handle(
            events.TaskDeclined(client_id=client_id, task_id=self._open_id(client_id, task_id), at_s=self.now_s)
        )

    def lose(self, client_id: int, task_id: int | None = None) -> list[str]:
        """The task is known not to have reached the client."""
        return self.handle(
            events.TaskLost(client_id=client_id, task_id=self._open_id(client_id, task_id), at_s=self.now_s)
        )

    def _open_id(self, client_id: int, task_id: int | None) -> int:
        open_id = self.coordinator.membership.clients[client_id].tasks.open_id if task_id is None else task_id
        assert open_id is not None
        return open_id

    def applied(self) -> list[str]:
        return self.handle(events.RoundApplied(version=self.coordinator.version + 1, at_s=self.now_s))

    def fire(self, timer: str) -> list[str]:
        return self.handle(events.TimerFired(timer=timer, at_s=self.now_s))

    def stop(self) -> list[str]:
        return self.handle(events.StopRequested(at_s=self.now_s))


@pytest.fixture
def drive() -> Any:
    """Make a driver: `drive("k-async", clients=3, k=2)`. Other settings have the defaults below."""

    def make(
        trigger: str,
        *,
        clients: int,
        k: int | None = None,
        wait_s: float | None = None,
        size: int | None = None,
        selector: str | None = None,
        availability: tuple[float, ...] | None = None,
        **others: Any,
    ) -> Driver:
        settings: dict[str, Any] = {
            "rounds": 100, "seed": 0, "lease_s": 1000.0, "evaluate_every": 100, "retry_s": 5.0,
            "min_clients": None,
        } | others  # fmt: skip
        return Driver(
            CoordinatorSettings(
                clients=clients,
                trigger=TriggerSettings(name=trigger, k=k, wait_s=wait_s),
                selector=SelectorSettings(name=selector or ("all" if size is None else "random"), size=size),
                availability=availability,
                **settings,
            )
        )

    return make
