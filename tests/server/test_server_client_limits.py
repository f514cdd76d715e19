"""The limits of a client by hand, and their use in the server protocol, on a simulated network and clock."""

import pytest

from support.played import PlayedClient, PlayedServer
from support.wire import update_of
from unstale.config.settings import ServerSettings
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.metrics import catalogue
from unstale.server import client_limits
from unstale.server.client_limits import BLAMED, ROUTES_KEPT, UNREADABLE, ClientLimits, MaySpeak, allow_all
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Error, Heartbeat, Hello, Message, Task, Welcome

ROUTE = b"\x00route"
NOT_TO_BLAME = {
    Reason.HELLO_FIRST,  # the server came back, or the lease ran out
    Reason.EXPIRED_TASK,  # another client was faster
    Reason.RUN_FINISHED,
    Reason.NOT_STORED,  # the server's own trouble
    Reason.RATE_LIMITED,  # is bounded as it is
    Reason.QUARANTINED,
    Reason.UNAVAILABLE,  # never sent by the server
    Reason.WRONG_CHECKSUM,  # damaged on the way
    Reason.NO_CREDIT,  # sent before a reconnect, perhaps
}


def lets_in(client_limits: ClientLimits, at_s: float, client_id: int | None = None, route: bytes = ROUTE) -> bool:
    try:
        client_limits.check_rate(route, client_id, at_s)
    except RemoteContractError as error:
        return error.reason is not Reason.RATE_LIMITED
    return True


def greets(
    client_limits: ClientLimits, at_s: float, client_id: int = 0, *, speaks_for: int | None = None
) -> Reason | None:
    """Why a hello is refused; None when it is not."""
    try:
        client_limits.on_hello(ROUTE, speaks_for, client_id, at_s)
    except RemoteContractError as error:
        return error.reason
    return None


def judged(client_limits: ClientLimits, reason: Reason | None, *, outcome: Outcome | None = None) -> bool:
    """An update of client 0 gets a verdict. Whether the client is to go then."""
    first = Outcome.ACCEPTED if reason is None else Outcome.REJECTED
    client_limits.on_verdict(
        Acknowledge(client_id=0, task_id=1, outcome=outcome or first, first_outcome=first, reason=reason), 0.0
    )
    return client_limits.is_quarantine_due(0)


# -------------------------------------------------------------------------------------------------------------- buckets


def test_twice_what_a_second_lets_in_may_come_at_once_and_then_what_a_second_lets_in() -> None:
    client_limits = ClientLimits(client_messages_per_s_max=4)
    assert [lets_in(client_limits, 0.0, 7) for _ in range(9)] == [True] * 8 + [False]
    assert [lets_in(client_limits, 0.25, 7) for _ in range(2)] == [True, False]  # 0.25 s * 4 /s = 1
    assert [lets_in(client_limits, 1.0, 7) for _ in range(4)] == [True] * 3 + [False]  # 0.75 s * 4 /s = 3
    assert [lets_in(client_limits, 99.0, 7) for _ in range(9)] == [True] * 8 + [False]  # full again, and not fuller


def test_each_client_and_each_connection_pays_for_itself() -> None:
    client_limits = ClientLimits(client_messages_per_s_max=1, stranger_messages_per_s_max=1)
    assert [lets_in(client_limits, 0.0, client_id) for client_id in (1, 1, 1, 2)] == [True, True, False, True]
    assert [lets_in(client_limits, 0.0, None, route) for route in (b"a", b"a", b"a", b"b")] == [True, True, False, True]


def test_a_connection_pays_for_a_hello_once_whichever_client_sends_it() -> None:
    client_limits = ClientLimits(client_messages_per_s_max=1000, stranger_messages_per_s_max=1)
    assert lets_in(client_limits, 0.0)
    assert greets(client_limits, 0.0) is None  # paid by letting it in
    assert lets_in(client_limits, 0.0, 0)
    assert greets(client_limits, 0.0, speaks_for=0) is None  # the second
    assert greets(client_limits, 0.0, speaks_for=0) is Reason.RATE_LIMITED
    assert lets_in(client_limits, 0.0, 0)  # whatever else the client says


def test_without_bounds_everything_is_accepted() -> None:
    client_limits = ClientLimits()
    assert all(lets_in(client_limits, 0.0, client_id) for client_id in (None, 0) for _ in range(5000))
    assert greets(client_limits, 0.0, speaks_for=0) is None
    assert not any(judged(client_limits, Reason.NON_FINITE) for _ in range(100))


def test_a_connection_is_told_once_a_second_that_it_says_too_much_and_of_all_else_always() -> None:
    client_limits = ClientLimits(stranger_messages_per_s_max=1)
    answered = [client_limits.may_answer(ROUTE, Reason.RATE_LIMITED, at_s) for at_s in (5.0, 5.5, 5.99, 6.0, 6.5)]
    assert answered == [True, False, False, True, False]
    assert client_limits.may_answer(b"another", Reason.RATE_LIMITED, 6.5)
    assert all(client_limits.may_answer(ROUTE, Reason.MALFORMED_HEADER, 6.5) for _ in range(3))


def test_the_connections_that_are_remembered_are_bounded_and_the_busiest_stay() -> None:
    client_limits = ClientLimits(stranger_messages_per_s_max=1)
    assert [lets_in(client_limits, 0.0) for _ in range(3)] == [True, True, False]
    for number in range(3 * ROUTES_KEPT):
        lets_in(client_limits, 0.0, None, number.to_bytes(5, "big"))
        if number % 1000 == 0:
            assert not lets_in(client_limits, 0.0)
    assert len(client_limits._routes) == ROUTES_KEPT


# ----------------------------------------------------------------------------------------------------------- quarantine


def test_every_reason_is_either_the_clients_own_mistake_or_not() -> None:
    assert set(Reason) == BLAMED | NOT_TO_BLAME
    assert not BLAMED & NOT_TO_BLAME


def test_so_many_rejections_in_a_row_and_the_client_is_to_go() -> None:
    client_limits = ClientLimits(quarantine_after=3)
    assert [judged(client_limits, reason) for reason in (
        Reason.ZERO_UPDATE, Reason.WRONG_SIZE, Reason.UNKNOWN_TASK,
    )] == [
        False, False, True,
    ]  # fmt: skip


def test_an_accepted_update_starts_the_row_anew() -> None:
    client_limits = ClientLimits(quarantine_after=2)
    reasons = [Reason.ZERO_UPDATE, None, Reason.ZERO_UPDATE, None, Reason.ZERO_UPDATE, Reason.ZERO_UPDATE]
    assert [judged(client_limits, reason) for reason in reasons] == [False] * 5 + [True]


@pytest.mark.parametrize("reason", sorted(NOT_TO_BLAME))
def test_a_rejection_caused_by_the_network_neither_counts_nor_resets_the_series(reason: Reason) -> None:
    client_limits = ClientLimits(quarantine_after=2)
    judged(client_limits, Reason.NON_FINITE)
    assert not any(judged(client_limits, reason) for _ in range(5))
    assert judged(client_limits, Reason.NON_FINITE)


def test_a_repeat_of_a_rejected_update_counts_once() -> None:
    client_limits = ClientLimits(quarantine_after=2)
    assert not judged(client_limits, Reason.NON_FINITE)
    assert not any(judged(client_limits, Reason.NON_FINITE, outcome=Outcome.DUPLICATE) for _ in range(5))


@pytest.mark.parametrize("reason", sorted(UNREADABLE))
def test_headers_count_as_long_as_none_can_be_read(reason: Reason) -> None:
    client_limits = ClientLimits(quarantine_after=2)
    for _ in range(5):  # damage on the way: the heartbeats between can be read
        client_limits.on_refused(0, reason, 0.0)
        client_limits.on_valid_message(0)
    assert not client_limits.is_quarantine_due(0)
    client_limits.on_refused(0, reason, 0.0)
    client_limits.on_refused(0, reason, 0.0)
    assert client_limits.is_quarantine_due(0)


def test_a_readable_message_does_not_excuse_what_is_wrong_in_others() -> None:
    client_limits = ClientLimits(quarantine_after=2)
    for _ in range(2):
        client_limits.on_refused(0, Reason.UNEXPECTED_TYPE, 0.0)
        client_limits.on_valid_message(0)
    assert client_limits.is_quarantine_due(0)


def test_a_suspect_is_one_until_an_update_of_it_counts_and_nothing_is_held_against_it() -> None:
    client_limits = ClientLimits(quarantine_after=3)
    assert set(client_limits.suspects) == set()
    judged(client_limits, Reason.NON_FINITE)
    client_limits.on_refused(0, Reason.MALFORMED_HEADER, 0.0)
    judged(client_limits, None)
    assert set(client_limits.suspects) == {0}  # a header of it could not be read, and none could since
    client_limits.on_valid_message(0)
    judged(client_limits, None)
    assert set(client_limits.suspects) == set()


def test_a_quarantined_client_is_no_suspect() -> None:
    client_limits = ClientLimits(quarantine_after=1)
    judged(client_limits, Reason.NON_FINITE)
    client_limits.quarantine(0, 0.0)
    assert set(client_limits.suspects) == set()


def test_a_connection_without_a_client_blames_no_client() -> None:
    client_limits = ClientLimits(quarantine_after=1)
    client_limits.on_refused(None, Reason.MALFORMED_HEADER, 0.0)
    client_limits.on_valid_message(None)
    assert client_limits._clients == {}


def test_in_quarantine_a_hello_is_refused_until_the_time_is_over_and_the_row_begins_anew() -> None:
    client_limits = ClientLimits(quarantine_after=1, quarantine_s=60.0)
    judged(client_limits, Reason.NON_FINITE)
    assert "60 s" in str(client_limits.quarantine(0, 100.0))
    assert not client_limits.is_quarantine_due(0)
    assert [greets(client_limits, at_s) for at_s in (100.0, 159.9, 160.0)] == [
        Reason.QUARANTINED, Reason.QUARANTINED, None,
    ]  # fmt: skip
    assert greets(client_limits, 100.0, 1) is None  # another client
    with pytest.raises(RemoteContractError, match=r"client 0 .* for 1 s;"):
        client_limits.on_hello(ROUTE, None, 0, 159.5)
    assert judged(client_limits, Reason.NON_FINITE)


def test_the_settings_are_the_guards() -> None:
    made = client_limits.configured(ServerSettings(client_messages_per_s_max=3, quarantine_after=2, quarantine_s=9.0))
    assert [lets_in(made, 0.0, 0) for _ in range(7)] == [True] * 6 + [False]
    assert [lets_in(made, 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [judged(made, Reason.NON_FINITE) for _ in range(2)] == [False, True]
    assert "9 s" in str(made.quarantine(0, 0.0))
    unbounded = client_limits.configured(ServerSettings(client_messages_per_s_max=None, quarantine_after=None))
    assert all(lets_in(unbounded, 0.0, 0) for _ in range(5000))
    assert not any(judged(unbounded, Reason.NON_FINITE) for _ in range(100))


# ----------------------------------------------------------------------------------------------------------- the server
# protocol


def guarded(client_limits: ClientLimits, may_speak: MaySpeak = allow_all, **options: int) -> PlayedServer:
    return PlayedServer(client_limits=client_limits, may_speak=may_speak, **options)


def counted(server: PlayedServer, metric: catalogue.Metric, *labels: str) -> float:
    return sum(one.value for one in server.observed if (one.metric, one.labels) == (metric, labels))


def reasons(messages: list[Message]) -> list[Reason]:
    """Of the errors among them."""
    return [message.reason for message in messages if isinstance(message, Error)]


def say_garbage(client: PlayedClient) -> None:
    client.server.protocol.on_message(client.route, b"\xc1")
    client.server.protocol.flush()


def test_a_client_that_sends_nothing_but_nonsense_is_taken_out_and_may_come_back() -> None:
    server = guarded(ClientLimits(quarantine_after=2, quarantine_s=60.0), clients=2)
    hostile, honest = server.client(0), server.client(1)
    honest.join()  # the run starts
    task = hostile.task()
    honest.hears()
    for number in (1001, 2001):  # never given
        hostile.say_update(task.model_copy(update={"task_id": number}))
    *acks, error = hostile.hears()
    assert [ack.type for ack in acks] == ["ack", "ack"]  # the verdicts first
    assert isinstance(error, Error) and error.reason is Reason.QUARANTINED
    assert server.coordinator.clients_by_state["left"] == 1
    assert not server.coordinator.awaits(0, task.task_id)  # rounds wait for it no longer
    assert counted(server, catalogue.QUARANTINES) == 1

    hostile.say_update(task)
    assert reasons(hostile.hears()) == [Reason.HELLO_FIRST]
    hostile.join()
    assert reasons(hostile.hears()) == [Reason.QUARANTINED]
    hostile.join(session="b" * 32)  # nor as another process
    assert reasons(hostile.hears()) == [Reason.QUARANTINED]
    assert server.coordinator.clients_by_state["left"] == 1

    server.now_s = 60.0
    assert hostile.task().task_id > task.task_id


def test_quarantine_ends_no_round_of_the_others() -> None:
    server = guarded(ClientLimits(quarantine_after=2), clients=2)
    hostile, honest = server.client(0), server.client(1)
    hostile.join()
    honest.join()
    say_garbage(hostile)
    say_garbage(hostile)
    _, task = honest.hears()
    assert isinstance(task, Task)
    assert honest.answer(task).outcome == "accepted"
    server.compute()
    assert server.coordinator.version == 1


def test_a_client_quarantined_in_a_turn_of_many_messages_leaves_once() -> None:
    server = guarded(ClientLimits(quarantine_after=1))
    client = server.client(0)
    client.task()
    for _ in range(5):
        server.protocol.on_message(client.route, b"\xc1")
    server.protocol.flush()
    assert reasons(client.hears()) == [Reason.MALFORMED_HEADER] * 5 + [Reason.QUARANTINED]
    assert counted(server, catalogue.QUARANTINES) == 1


def test_a_message_too_many_is_dropped_unread_and_changes_nothing() -> None:
    server = guarded(ClientLimits(client_messages_per_s_max=2))
    client = server.client(0)
    task = client.task()  # paid by the connection, which is unbounded here
    for number in range(4):
        client.say(Heartbeat(number=number, version=0))
    client.hears()
    for _ in range(3):
        client.say_update(task)
    assert reasons(client.hears()) == [Reason.RATE_LIMITED]  # reported once
    assert counted(server, catalogue.MESSAGES_REFUSED, Reason.RATE_LIMITED) == 3
    assert server.coordinator.awaits(0, task.task_id)
    server.now_s = 0.5
    assert client.answer(task).outcome == "accepted"


def test_a_client_over_its_rate_loses_neither_update_nor_place() -> None:
    server = guarded(ClientLimits(client_messages_per_s_max=1))
    client = server.client(0)
    task = client.task()
    for number in range(5):
        client.say(Heartbeat(number=number, version=0))
    client.hears()
    assert server.coordinator.clients_by_state["working"] == 1
    server.now_s = 1.0
    client.say(update_of(task), [memoryview(bytes(8))])  # zeros: read, and judged
    (ack,) = client.hears()
    assert ack.type == "ack"


def test_a_stranger_can_neither_spend_what_a_client_may_say_nor_have_more_than_its_own() -> None:
    server = guarded(ClientLimits(stranger_messages_per_s_max=1), clients=2)
    client, stranger = server.client(0), server.client(1)
    client.join()
    client.hears()
    for _ in range(5):
        stranger.say(Heartbeat(number=0, version=0))
        assert [message.type for message in client.beat()] == ["heartbeat"]
    assert reasons(stranger.hears()) == [Reason.HELLO_FIRST, Reason.HELLO_FIRST, Reason.RATE_LIMITED]


def test_hellos_are_bounded_for_a_client_as_for_a_stranger() -> None:
    server = guarded(ClientLimits(stranger_messages_per_s_max=1), clients=2)
    client = server.client(0)
    for _ in range(5):
        client.join()
    heard = client.hears()
    assert [message.type for message in heard if isinstance(message, Welcome)] == ["welcome"] * 2
    assert reasons(heard) == [Reason.RATE_LIMITED]


def test_a_hello_for_another_client_is_blamed_on_its_sender() -> None:
    server = guarded(ClientLimits(quarantine_after=1), may_speak=lambda _, client_id: client_id == 0, clients=2)
    thief = server.client(0)
    thief.join()
    thief.hears()
    thief.say(Hello(client_id=1, session="a" * 32))
    assert reasons(thief.hears()) == [Reason.NOT_THE_OWNER, Reason.QUARANTINED]
    assert greets(server.protocol._client_limits, server.now_s, 1) is None  # the victim may come


def test_a_connection_whose_key_was_revoked_does_not_discredit_the_client() -> None:
    keys: set[str | None] = {None}
    server = guarded(ClientLimits(quarantine_after=1), may_speak=lambda key, _: key in keys)
    client = server.client(0)
    client.task()
    keys.clear()
    client.beat()
    keys.add(None)
    server.client(0, b"with the new key").join(session="b" * 32)
    assert counted(server, catalogue.QUARANTINES) == 0
    assert server.coordinator.is_active(0)
