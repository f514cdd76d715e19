"""Records the metrics of a client process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from unstale.metrics import observe
from unstale.metrics.observe import Observation
from unstale_client.jobs import Failed, Ready
from unstale_client.loop import Observer
from unstale_proto.messages import Ack, Message, Update, Welcome


@dataclass(slots=True)
class ClientStats(Observer):
    """Turns messages and results into observations. One thread. record: stores them. clock: monotonic, seconds."""

    record: Callable[[Iterable[Observation]], None]
    clock: Callable[[], float]
    _first_sent_s: dict[tuple[int, int], float] = field(default_factory=dict, init=False)  # by client and task
    _run_id: str = field(default="", init=False)

    def sent(self, client_id: int, message: Message, payload_bytes: int) -> None:
        if isinstance(message, Update):
            self._first_sent_s.setdefault((client_id, message.task_id), self.clock())
            self.record([observe.update_sent()])
        if payload_bytes:
            self.record([observe.client_payload("sent", payload_bytes)])

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:
        if isinstance(message, Welcome):
            if message.run_id != self._run_id:  # task ids restart
                self._run_id = message.run_id
                self._first_sent_s.clear()
            self.record([observe.welcomed()])
        elif isinstance(message, Ack):
            sent_s = self._first_sent_s.pop((client_id, message.task_id), None)
            seconds = None if sent_s is None else self.clock() - sent_s
            self.record(observe.update_answered(message.outcome, message.reason, seconds))
        if payload_bytes:
            self.record([observe.client_payload("received", payload_bytes)])

    def trained(self, result: Ready | Failed) -> None:
        """Record the result of a task that goes to the server: an update or a failure."""
        self._record_result(result, _outcome(result))

    def superseded(self, result: Ready | Failed) -> None:
        """Record a result that is not sent, because a newer task or another run came first."""
        self._record_result(result, "superseded")

    def _record_result(self, result: Ready | Failed, outcome: str) -> None:
        computed = [observe.computed(result.computed_s)] if isinstance(result, Ready) else []
        self.record([*computed, observe.task_ended(outcome)])


def _outcome(result: Ready | Failed) -> str:
    """The outcome of a task, as in `unstale_client_tasks_total`."""
    if isinstance(result, Ready):
        return "trained"
    if result.is_declined:
        return "declined"
    return "code-error" if result.is_code_error else "failed"
