"""Refusals of a simulated server: updates beyond the norm bound, and quarantined clients.

By default two asynchronous clients with tasks of 1 s. Client 0 sends deltas of 0, which are refused; after three in a
row it is quarantined.
"""

from typing import Any

import pytest

from support.virtual import OneNumber, Trace, always, one_number, still, update_of
from unstale.coordinator import actions, events
from unstale.errors import UserError
from unstale.learner.bounds import NormMax
from unstale.server.client_limits import ClientLimits
from unstale.settings.learning import TriggerSettings
from unstale.toxics.link import Applied
from unstale.toxics.registry import create
from unstale.training.local import LocalUpdate


def toxic(**settings: Any) -> Applied:
    return Applied(create({"name": settings["type"], **settings}, "test"), frozenset({0}))


def of_client_0(*verdicts: float, otherwise: float = -1.0) -> OneNumber:
    """Train client 0 with these deltas in order; client 1 sends valid ones."""

    def train(client_id: int, number: int, base_d: Any, rate: float) -> LocalUpdate:
        value = verdicts[number] if client_id == 0 and number < len(verdicts) else otherwise
        return update_of(value, kind="delta")

    return OneNumber(train)


def played(train: OneNumber, *toxics: Applied, after: int = 3, rounds: int = 30, **changes: Any) -> Trace:
    trace = changes.pop("observe", None) or Trace()
    given: dict[str, Any] = {
        "clients": 2,
        "trigger": TriggerSettings(name="async"),
        "client_limits": ClientLimits(quarantine_after=after, quarantine_s=12.0),
        **changes,
    }
    one_number(train, always(1.0), rounds=rounds, toxics=toxics, observe=trace, **given).run()
    return trace


def verdicts(trace: Trace, client_id: int) -> list[str]:
    found = [action for action in trace.done(actions.Acknowledge) if action.client_id == client_id]
    return [action.reason or action.outcome.value for action in found]


def times(trace: Trace, kind: type) -> list[float]:
    """Times of client 0's events of a kind."""
    return [event.at_s for event in trace.of(kind) if event.client_id == 0]


def test_an_update_beyond_the_norm_bound_is_refused() -> None:
    trace = played(of_client_0(3.0, -2.5, 2.0), norm_max=2.0, rounds=4, after=9)
    assert verdicts(trace, 0) == ["norm-too-large", "norm-too-large", "accepted"]
    assert verdicts(trace, 1) == ["accepted"] * 3


NO_TOXIC: list[Applied] = []
HARMLESS = [toxic(type="drop", messages=["bye"])]  # heartbeats are simulated where messages may be lost
HARMLESS_AND_SILENT = [toxic(type="reorder", messages=["bye"], delay=1.0)]


@pytest.mark.parametrize("toxics", [NO_TOXIC, HARMLESS, HARMLESS_AND_SILENT])
def test_a_repeatedly_refused_client_is_quarantined(toxics: list[Applied]) -> None:
    # Refused at 1, 2 and 3 s, so it is quarantined until 15 s. Its hellos of 8 and 13 s are refused, not that of 18 s.
    trace = played(of_client_0(0.0, 0.0, 0.0), *toxics)
    assert times(trace, events.ClientLeft) == [3.0]
    assert times(trace, events.ClientJoined) == [0.0, 18.0]
    assert verdicts(trace, 0) == ["zero-update"] * 3 + ["accepted"] * 6  # at 19, 20, ... s
    assert trace.arrivals[-1][0] == 24.0
    assert len(verdicts(trace, 1)) == 24


@pytest.mark.parametrize("toxics", [NO_TOXIC, HARMLESS, HARMLESS_AND_SILENT])
def test_a_client_that_stays_faulty_is_quarantined_again(toxics: list[Applied]) -> None:
    # Admitted at 18 s, refused at 19, 20 and 21 s; quarantined until 33 s, and admitted at 36 s.
    trace = played(of_client_0(*[0.0] * 9), *toxics, rounds=40)
    assert times(trace, events.ClientLeft) == [3.0, 21.0, 39.0]
    assert times(trace, events.ClientJoined) == [0.0, 18.0, 36.0]


def test_a_vanished_gradient_does_not_count_against_a_client() -> None:
    train = OneNumber(lambda client_id, number, base_d, rate: update_of(0.0 if client_id == 0 else -1.0))
    trace = played(train, rounds=12)
    assert times(trace, events.ClientLeft) == []
    assert verdicts(trace, 0) == ["accepted"] * 6


def test_an_accepted_update_resets_the_count_of_refusals() -> None:
    trace = played(of_client_0(0.0, 0.0, -1.0, 0.0, 0.0, -1.0), rounds=12)
    assert times(trace, events.ClientLeft) == []
    assert verdicts(trace, 0)[:6] == ["zero-update", "zero-update", "accepted"] * 2


def test_network_damage_does_not_count_against_a_client_with_readable_updates() -> None:
    # Each update arrives damaged and, after the heartbeat's answer, again; heartbeats in between are readable.
    damage = toxic(type="corrupt", messages=["update"], where="header", bits=300, end_s=20.0)
    trace = played(OneNumber(still), damage, rounds=40)
    assert times(trace, events.ClientLeft) == []


def test_a_client_without_readable_updates_is_quarantined() -> None:
    # The update of 1 s and the heartbeats of 2 and 4 s: the third reaches the limit. Its update is sent again when it
    # is admitted, at 19 s, and belongs to a cancelled task.
    damage = toxic(
        type="corrupt", messages=["update", "heartbeat"], where="header", bits=300, direction="up", end_s=4.5
    )
    trace = played(OneNumber(still), damage, rounds=30)
    assert times(trace, events.ClientLeft) == [4.0]
    assert times(trace, events.ClientJoined) == [0.0, 19.0]
    assert verdicts(trace, 0)[:2] == ["expired-task", "accepted"]


@pytest.mark.parametrize("toxics", [NO_TOXIC, HARMLESS])
def test_a_quarantined_client_is_not_in_the_round_that_its_refusal_closed(toxics: list[Applied]) -> None:
    # The last messages of both in the second round: without client 0's update it is complete, and the third has only
    # client 1.
    trace = played(of_client_0(0.0, 0.0), *toxics, after=2, rounds=3, trigger=TriggerSettings(name="sync"))
    order = [type(event).__name__ for event in trace.of(events.ClientLeft, events.RoundApplied)]
    assert order == ["RoundApplied", "ClientLeft", "RoundApplied", "RoundApplied"]
    given = [action.client_id for action in trace.done(actions.SendTask) if action.version == 2]
    assert given == [1]


def test_a_run_with_all_clients_quarantined_ends_as_on_a_server() -> None:
    # hopeless.FRUITLESS_TASKS is 10: a later guard would not hide it.
    with pytest.raises(UserError, match=r"^training diverges: the last 20 tasks"):
        played(of_client_0(otherwise=0.0), after=11)


# --- one client with too long updates ---


def alone_against_four(update_of_0: float, norm_max: NormMax) -> tuple[OneNumber, dict[str, Any]]:
    """Client 0 sends this; the others train while the model is near, and then send zeros."""

    def train(client_id: int, number: int, base_d: Any, rate: float) -> LocalUpdate:
        if client_id == 0:
            return update_of(update_of_0, kind="delta")
        return update_of(-1.0 if abs(float(base_d[0])) < 1e6 else 0.0, kind="delta")

    return OneNumber(train), {"clients": 5, "norm_max": norm_max}


def test_an_update_that_would_end_the_run_is_refused_by_default() -> None:
    train, settings = alone_against_four(1e16, "adaptive")
    trace = played(train, after=3, rounds=40, **settings)
    assert set(verdicts(trace, 0)) == {"norm-too-large"}
    assert {one for client_id in range(1, 5) for one in verdicts(trace, client_id)} == {"accepted"}
    assert times(trace, events.ClientLeft)[0] == 3.0
    assert {event.client_id for event in trace.of(events.ClientLeft)} == {0}


def test_after_a_jump_no_client_is_quarantined_and_the_error_names_update_and_recovery() -> None:
    # Clients 0 to 4 make versions 1 to 5 at 1 s. At 2 s client 1 makes version 7 from version 2; others still work from
    # versions 3 to 6, and make versions 8 to 11.
    def train(client_id: int, number: int, base_d: Any, rate: float) -> LocalUpdate:
        if client_id == 1 and number == 1:
            return update_of(1e16, kind="delta")
        return update_of(-1.0 if abs(float(base_d[0])) < 1e6 else 0.0, kind="delta")

    trace = Trace()
    with pytest.raises(UserError) as error:
        played(OneNumber(train), clients=5, norm_max=None, after=3, rounds=200, observe=trace)
    assert str(error.value) == (
        "training diverges: the last 50 tasks made no update that counts, all of them zero, not finite or otherwise "
        "refused, at version 11; the update of client 1 from version 2 had norm 1e+16, 1e+16 times the median then: go "
        "back with `unstale rollback RUN --to 2 --without 1`, or lower training.learning_rate"
    )
    assert trace.of(events.ClientLeft) == []
