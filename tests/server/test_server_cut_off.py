"""A client whose connection closed: no message reaches it, and its earlier messages still count."""

from unstale.server.sessions import Sessions
from unstale_proto.messages import Hello

ONE, OTHER = "1" * 32, "2" * 32


def hello(client_id: int, session: str) -> Hello:
    return Hello(client_id=client_id, session=session)


def test_a_client_that_is_cut_off_cannot_be_reached_but_is_still_known() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(2, ONE), b"a")
    sessions.cut_off(2)
    sessions.cut_off(2)  # twice is once
    assert sessions.route_of(2) is None
    assert sessions.routes() == []
    assert sessions.client_of(b"a") == 2


def test_a_hello_mends_it() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(2, ONE), b"a")
    sessions.cut_off(2)
    assert sessions.admit(hello(2, ONE), b"b") is None
    assert sessions.route_of(2) == b"b"
    assert sessions.routes() == [b"b"]
    assert sessions.client_of(b"a") is None


def test_a_client_that_was_forgotten_or_never_there_is_not_cut_off() -> None:
    sessions = Sessions(clients=3)
    sessions.cut_off(2)
    sessions.admit(hello(2, ONE), b"a")
    sessions.cut_off(2)
    sessions.forget(2)
    assert sessions.client_of(b"a") is None
    sessions.cut_off(2)
    sessions.admit(hello(2, OTHER), b"b")
    assert sessions.route_of(2) == b"b"
