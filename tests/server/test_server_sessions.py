"""The binding of connections to clients."""

from unstale.server.sessions import Sessions
from unstale_proto.messages import Hello, ProcessStart

ONE, OTHER = "1" * 32, "2" * 32
HOME, AWAY = "3" * 32, "4" * 32


def hello(client_id: int, session: str, home: str = HOME, number: int | None = None) -> Hello:
    """number: of its start; None for a process without a home."""
    start = None if number is None else ProcessStart(home=home, number=number)
    return Hello(client_id=client_id, session=session, start=start)


def test_a_hello_binds_its_connection_to_its_client() -> None:
    sessions = Sessions(clients=3)
    assert sessions.client_of(b"a") is None
    assert sessions.admit(hello(2, ONE), b"a") is None
    assert sessions.client_of(b"a") == 2
    assert sessions.route_of(2) == b"a"


def test_the_same_process_on_a_new_connection_replaces_the_old_one_silently() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(2, ONE), b"a")
    assert sessions.admit(hello(2, ONE), b"b") is None
    assert sessions.client_of(b"a") is None
    assert sessions.route_of(2) == b"b"


def test_another_process_takes_over_and_the_former_connection_is_named() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(2, ONE), b"a")
    assert sessions.admit(hello(2, OTHER), b"b") == b"a"
    assert sessions.client_of(b"a") is None
    assert sessions.client_of(b"b") == 2


def test_a_hello_for_another_client_rebinds_the_connection() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE), b"a")
    assert sessions.admit(hello(1, ONE), b"a") is None
    assert sessions.client_of(b"a") == 1
    assert sessions.route_of(0) is None
    assert sessions.routes() == [b"a"]


def test_a_second_hello_on_one_connection_changes_nothing() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE), b"a")
    assert sessions.admit(hello(0, OTHER), b"a") is None
    assert sessions.route_of(0) == b"a"
    assert sessions.client_of(b"a") == 0


def test_a_forgotten_client_must_say_hello_again_and_supersedes_no_process() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE), b"a")
    sessions.forget(0)
    sessions.forget(0)  # twice is once
    assert sessions.client_of(b"a") is None
    assert sessions.admit(hello(0, OTHER), b"b") is None


def test_a_process_that_was_superseded_stays_so() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE), b"a")
    assert not sessions.is_superseded(hello(0, ONE), active=True)
    sessions.admit(hello(0, OTHER), b"b")
    assert sessions.is_superseded(hello(0, ONE), active=True)
    assert not sessions.is_superseded(hello(0, OTHER), active=True)
    assert not sessions.is_superseded(hello(1, ONE), active=True)


def test_a_process_whose_connection_was_forgotten_is_superseded_as_well() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE), b"a")
    sessions.forget(0)
    sessions.admit(hello(0, OTHER), b"b")
    assert sessions.is_superseded(hello(0, ONE), active=True)


def test_an_unknown_process_that_started_earlier_takes_nothing_over() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE, number=2), b"a")
    assert sessions.is_superseded(hello(0, OTHER, number=1), active=True)
    assert not sessions.is_superseded(hello(0, OTHER, number=3), active=True)
    assert not sessions.is_superseded(hello(1, OTHER, number=1), active=True)


def test_a_home_that_was_put_back_may_come_when_its_client_takes_part_no_more() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE, number=9), b"a")
    assert not sessions.is_superseded(hello(0, OTHER, number=1), active=False)


def test_starts_of_another_home_or_of_none_do_not_compare() -> None:
    sessions = Sessions(clients=3)
    sessions.admit(hello(0, ONE, number=2), b"a")
    assert not sessions.is_superseded(hello(0, OTHER, AWAY, number=1), active=True)
    assert not sessions.is_superseded(hello(0, OTHER), active=True)
    sessions.admit(hello(0, OTHER), b"b")
    assert sessions.is_superseded(hello(0, ONE, number=2), active=True)  # by its session, as ever
