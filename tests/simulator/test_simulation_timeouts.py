"""Task timeouts in the simulator. Client 0 takes 100 s for a task, and client 1 takes 1 s."""

from support.virtual import OneNumber, Trace, one_number, update_of
from unstale.coordinator import actions, events
from unstale.settings.learning import TriggerSettings

SYNC = TriggerSettings(name="sync")


def latency(client_id: int, _number: int) -> float:
    return 100.0 if client_id == 0 else 1.0


def played(task_timeout_s: float | None) -> Trace:
    trace = Trace()
    train = OneNumber(lambda *_: update_of(-1.0, kind="delta"))
    one_number(train, latency, clients=2, rounds=4, trigger=SYNC, observe=trace, task_timeout_s=task_timeout_s).run()
    return trace


def test_a_synchronous_round_continues_and_the_late_client_skips_a_round() -> None:
    trace = played(10.0)
    assert [(event.client_id, event.at_s) for event in trace.of(events.TaskExpired)] == [(0, 10.0), (0, 21.0)]
    assert [event.at_s for event in trace.of(events.RoundApplied)] == [10.0, 11.0, 21.0, 22.0]
    assert all(action.client_id == 1 for action in trace.done(actions.Acknowledge))


def test_without_a_timeout_every_round_waits() -> None:
    assert [event.at_s for event in played(None).of(events.RoundApplied)] == [100.0, 200.0, 300.0, 400.0]
