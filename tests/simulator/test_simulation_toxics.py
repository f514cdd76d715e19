"""Each toxic in virtual time, against arrivals computed by hand.

By default one asynchronous client with tasks of 1 s: without a toxic its updates arrive after 1, 2, 3, ... s.
Heartbeats leave after 2, 4, 6, ... s.
"""

from collections.abc import Sequence
from math import isnan
from typing import Any

import pytest
from torch import Tensor

from support.virtual import OneNumber, Trace, always, one_number, still, update_of
from unstale.coordinator import actions, events
from unstale.errors import UserError
from unstale.metrics.progress import Progress
from unstale.settings.learning import TriggerSettings
from unstale.simulator.network import NO_SIGNATURE
from unstale.simulator.simulation import Simulation
from unstale.toxics.link import Applied
from unstale.toxics.registry import create
from unstale.training.local import LocalUpdate
from unstale_proto import codec
from unstale_proto.messages import Message, Task, Update


def toxic(clients: frozenset[int] | None = None, **settings: Any) -> Applied:
    named = {"name": settings["type"], **settings}
    return Applied(create(named, "test"), clients)


def played(*toxics: Applied, rounds: int = 3, clients: int = 1, **changes: Any) -> tuple[Trace, Simulation]:
    trace = Trace()
    given: dict[str, Any] = {"trigger": TriggerSettings(name="async"), "observe": trace, **changes}
    run = one_number(given.pop("train", still), always(1.0), clients=clients, rounds=rounds, toxics=toxics, **given)
    run.run()
    return trace, run


def times(trace: Trace, client_id: int = 0) -> list[float]:
    return [pytest.approx(at_s) for at_s, sender in trace.arrivals if sender == client_id]


def outcomes(trace: Trace) -> list[str]:
    """Outcome, or reason of refusal, of the updates in order of arrival."""
    return [action.reason or action.outcome.value for action in trace.done(actions.Acknowledge)]


def test_latency_delays_the_task_and_its_update() -> None:
    trace, _ = played(toxic(type="latency", delay=0.25))
    assert times(trace) == [1.5, 3.0, 4.5]


def test_latency_in_one_direction_delays_only_that_direction() -> None:
    trace, _ = played(toxic(type="latency", delay=0.25, direction="up"))
    assert times(trace) == [1.25, 2.5, 3.75]


def test_a_toxic_does_not_affect_other_clients() -> None:
    trace, _ = played(toxic(frozenset({0}), type="latency", delay=0.25), clients=2, rounds=5)
    assert times(trace, 0) == [1.5, 3.0]
    assert times(trace, 1) == [1.0, 2.0, 3.0]


def test_transfer_time_is_bytes_over_bandwidth() -> None:
    # Each has one float of 4 bytes behind the header. The link is otherwise idle.
    task = Task(task_id=1, number=0, version=0, learning_rate=1.0, signature=NO_SIGNATURE, payload_bytes=4)
    update = Update(
        task_id=1,
        base_version=0,
        kind="gradient",
        num_examples=1000,
        steps=1,
        loss=1.0,
        learning_rate=1.0,
        signature=NO_SIGNATURE,
        payload_bytes=4,
    )
    down_bytes, up_bytes = (len(codec.encode(message)) + 4 for message in (task, update))
    trace, _ = played(toxic(type="bandwidth", bytes_per_s=1000.0), rounds=1)
    assert times(trace) == [down_bytes / 1000 + 1 + up_bytes / 1000]


def test_a_client_at_half_speed_has_half_the_frequency() -> None:
    trace, _ = played(toxic(type="slow", factor=2.0))
    assert times(trace) == [2.0, 4.0, 6.0]


def test_a_copy_counts_as_a_duplicate_and_is_not_computed_again() -> None:
    backend = OneNumber()
    trace, run = played(toxic(type="duplicate", messages=["update"]), rounds=2, train=backend)
    assert times(trace) == [1.0, 1.0, 2.0]  # the run ends before the second copy of the last one
    assert outcomes(trace) == ["accepted", "duplicate", "accepted"]
    assert len(backend.batches) == 2
    assert run.traffic.copied == 2


def test_a_duplicated_task_is_computed_once() -> None:
    trace, _ = played(toxic(type="duplicate", messages=["task"], after=0.5))
    assert times(trace) == [1.0, 2.0, 3.0]


def test_a_delayed_message_is_overtaken() -> None:
    # The first acknowledgement arrives 0.5 s after the task behind it, without effect.
    trace, _ = played(toxic(type="reorder", messages=["ack"], delay=0.5))
    assert times(trace) == [1.0, 2.0, 3.0]
    trace, _ = played(toxic(type="reorder", messages=["update"], delay=0.5))
    assert times(trace) == [1.5, 3.0, 4.5]


def test_a_lost_update_is_sent_again_when_a_heartbeat_behind_it_is_answered() -> None:
    trace, run = played(toxic(type="drop", messages=["update"], end_s=1.5))
    assert times(trace) == [2.0, 3.0, 4.0]
    assert (run.traffic.lost, run.traffic.resent) == (1, 1)


def test_a_lost_acknowledgement_makes_a_duplicate() -> None:
    # The update of 1 s is accepted, and is sent again at 2 s, when the next one arrives.
    trace, run = played(toxic(type="drop", messages=["ack"], end_s=1.5))
    assert times(trace) == [1.0, 2.0, 2.0, 3.0]
    assert sorted(outcomes(trace)) == ["accepted", "accepted", "accepted", "duplicate"]
    assert run.traffic.resent == 1


def test_a_lost_task_is_assigned_again_when_the_second_heartbeat_proves_the_loss() -> None:
    # Heartbeat 0 leaves at 2 s and is answered; heartbeat 1, at 4 s, reports that answer and no task.
    trace, run = played(toxic(type="drop", messages=["task"], end_s=0.5))
    (lost,) = trace.of(events.TaskLost)
    assert (lost.at_s, lost.task_id) == (4.0, 1)
    assert times(trace) == [5.0, 6.0, 7.0]
    assert run.traffic.tasks_lost == 1


def test_a_lost_heartbeat_proves_no_loss() -> None:
    # As above, but heartbeats 0 and 1 are lost: those of 6 and 8 s prove it.
    trace, _ = played(
        toxic(type="drop", messages=["task"], end_s=0.5),
        toxic(type="drop", name="beats", messages=["heartbeat"], end_s=5.0),
    )
    assert [event.at_s for event in trace.of(events.TaskLost)] == [8.0]


def test_a_declined_task_is_returned_at_once_and_the_round_closes_without_the_client() -> None:
    # p = 0: client 0 is never available.
    trace, run = played(toxic(frozenset({0}), type="dropout", p=0.0), clients=2, trigger=TriggerSettings(name="sync"))
    assert [(event.client_id, event.at_s) for event in trace.of(events.TaskDeclined)] == [(0, 0.0), (0, 1.0), (0, 2.0)]
    assert trace.arrivals == [(1.0, 1), (2.0, 1), (3.0, 1)]
    assert run.traffic.declined == 3


def test_a_round_without_clients_closes_without_updates() -> None:
    trace, _ = played(toxic(type="dropout", p=0.0), rounds=4, trigger=TriggerSettings(name="sync"))
    assert [len(action.contributions) for action in trace.done(actions.ApplyRound)] == [0, 0, 0, 0]


def test_a_client_lost_in_a_blackout_returns_with_its_update() -> None:
    # Its update of 1 s and all messages until 6.5 s are lost, so at 5 s its lease expires and its task is cancelled. At
    # 6 s, after a lease without messages, its hello is lost, and repeated 5 s later. Then it sends the update of the
    # cancelled task again, and works on its new task.
    trace, _ = played(toxic(type="blackout", start_s=0.5, end_s=6.5), rounds=1, lease_s=5.0)
    assert [event.at_s for event in trace.of(events.TimerFired)] == [5.0]
    assert [(event.at_s, event.holding) for event in trace.of(events.ClientJoined)] == [(0.0, ()), (11.0, (1,))]
    assert times(trace) == [11.0, 12.0]
    assert outcomes(trace) == ["expired-task", "accepted"]


def test_a_lease_expires_only_where_heartbeats_are_lost() -> None:
    trace, run = played(
        toxic(frozenset({0}), type="blackout", start_s=0.5, end_s=40.0), clients=2, rounds=30, lease_s=5.0
    )
    assert run._coordinator.clients_by_state["lost"] == 1
    assert len(times(trace, 1)) == 30


def test_a_blackout_on_the_tcp_layer_delays_messages_until_its_end() -> None:
    trace, _ = played(toxic(type="blackout", layer="tcp", start_s=0.5, end_s=3.5))
    assert times(trace) == [3.5, 4.5, 5.5]


def test_a_connection_that_breaks_at_an_update_is_noticed_at_the_next_heartbeat() -> None:
    # The heartbeat of 2 s arrives over a connection without a hello, which is requested. The update follows it.
    trace, run = played(toxic(type="disconnect", messages=["update"], end_s=1.5))
    (_, again) = trace.of(events.ClientJoined)
    assert (again.at_s, again.holding, again.same_connection) == (2.0, (1,), False)
    assert times(trace) == [2.0, 3.0, 4.0]
    assert (run.traffic.cuts, run.traffic.lost) == (1, 1)


def test_a_task_lost_with_its_connection_is_assigned_again_at_the_hello() -> None:
    trace, _ = played(toxic(type="disconnect", messages=["task"], end_s=0.5))
    assert times(trace) == [3.0, 4.0, 5.0]


def test_messages_sent_without_a_connection_arrive_after_reconnection() -> None:
    # Cut at 0 s for 2.4 s, and a tenth of a second to connect. The heartbeat of 2 s cannot leave, so at 2.5 s the
    # client sends hello.
    trace, _ = played(toxic(type="disconnect", messages=["task"], end_s=0.5, down_s=2.4))
    assert [event.at_s for event in trace.of(events.ClientJoined)] == [0.0, 2.5]
    assert times(trace) == [3.5, 4.5, 5.5]


def _final(run_toxics: Sequence[Applied], train: Any) -> float:
    progress: list[Progress] = []
    played(*run_toxics, rounds=1, train=train, on_progress=progress.append)
    return progress[-1].loss  # the loss of a model of one number is the number


def test_a_damaged_update_is_aggregated_as_received() -> None:
    # All 32 bits of 1.0 flipped: 0x3f800000 becomes 0xc07fffff, -3.9999998. The model moves against it.
    damage = toxic(type="corrupt", messages=["update"], where="payload", bits=32)
    assert _final([damage], lambda *_: update_of(1.0)) == pytest.approx(3.9999998, abs=1e-6)


def test_an_update_with_non_finite_damage_is_refused() -> None:
    # All bits flipped: 0x807fffff, a very small number, becomes 0x7f800000, infinity.
    damage = toxic(type="corrupt", messages=["update"], where="payload", bits=32, end_s=1.5)
    trace, _ = played(damage, rounds=1, train=lambda *_: update_of(-1.1754942106924411e-38))
    assert outcomes(trace)[0] == "non-finite"


def test_an_unreadable_header_counts_as_lost() -> None:
    backend = OneNumber()
    damage = toxic(type="corrupt", messages=["update"], where="header", bits=300, end_s=1.5)
    trace, run = played(damage, train=backend)
    assert times(trace) == [2.0, 3.0, 4.0]
    assert (run.traffic.lost, run.traffic.resent) == (1, 1)
    assert len(backend.batches) == 3  # a retransmission is not a computation


def test_a_client_trains_from_the_damaged_model() -> None:
    # 0.0 with all its bits flipped is not a number.
    bases: list[float] = []

    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        bases.append(float(base_d[0]))
        return update_of(-1.0)

    played(toxic(type="corrupt", messages=["task"], where="payload", bits=32, end_s=0.5), train=train)
    assert isnan(bases[0])
    assert bases[1:] == [1.0, 2.0]


def test_a_training_that_diverges_behind_a_network_is_declined_and_not_retried() -> None:
    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        return update_of(-1.0, loss=float("inf") if number == 0 else 1.0)

    backend = OneNumber(train)
    trace, run = played(toxic(type="drop", messages=["hello"]), train=backend)
    assert [event.at_s for event in trace.of(events.TaskFailed)] == [1.0]
    assert backend.settled[0] == (0, 0, False)
    assert run.traffic.resent == 0


def test_a_client_stores_its_state_when_the_verdict_arrives() -> None:
    backend = OneNumber()
    played(toxic(type="latency", delay=0.25), train=backend, rounds=3)
    assert backend.settled == [(0, 0, True), (0, 1, True)]  # the last verdict is still in flight


def test_a_run_over_a_dead_network_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale.simulator.network.STALLED_MESSAGES_MAX", 50)
    with pytest.raises(UserError, match=r"^nothing comes through: .* at version 0; the scenario loses too much$"):
        played(toxic(type="drop", messages=["update"]), lease_s=5.0)


def test_messages_pass_through_the_codec() -> None:
    def relay(message: Message) -> Any:
        return codec.decode(codec.encode(message))

    mixture = [
        toxic(type="drop", toxicity=0.2),
        toxic(type="duplicate", toxicity=0.2),
        toxic(type="disconnect", toxicity=0.05),
    ]
    plain, _ = played(*mixture, clients=4, rounds=40, lease_s=20.0)
    through, _ = played(*mixture, clients=4, rounds=40, lease_s=20.0, relay=relay)
    assert plain.arrivals == through.arrivals
