"""Timers of many clients, against a table that is searched."""

from math import inf

from unstale.seeds import Stream, stream
from unstale_client.timers import SLACK, Timers


def test_the_earliest_time_comes_first_and_each_once() -> None:
    timers = Timers()
    assert timers.due_s == inf
    for client_id, due_s in enumerate((3.0, 1.0, 2.0)):
        timers.set(client_id, due_s)
    assert (timers.due_s, timers.first) == (1.0, 1)
    assert timers.take(0.9) == []
    assert timers.take(2.0) == [1, 2]
    assert timers.take(2.0) == []
    assert (timers.due_s, timers.first) == (3.0, 0)


def test_a_time_is_replaced_and_removed() -> None:
    timers = Timers()
    timers.set(1, 5.0)
    timers.set(1, 7.0)
    assert timers.take(6.0) == []
    timers.set(1, 5.0)  # the time of an entry that was replaced
    assert timers.take(8.0) == [1]
    timers.set(1, 9.0)
    timers.set(1, inf)
    timers.set(2, inf)
    assert 1 not in timers and 2 not in timers
    assert timers.due_s == inf


def test_any_calls_give_what_a_search_of_a_table_gives() -> None:
    rng = stream(0, Stream.LATENCY)
    timers, table = Timers(), dict.fromkeys(range(50), inf)
    for at_s in range(3000):
        for client_id, ahead_s in zip(rng.integers(50, size=4).tolist(), rng.integers(1, 40, size=4), strict=True):
            table[client_id] = inf if ahead_s > 35 else float(at_s + ahead_s)
            timers.set(client_id, table[client_id])
        assert timers.due_s == min(table.values())
        due = sorted((due_s, client_id) for client_id, due_s in table.items() if due_s <= at_s)
        assert timers.take(at_s) == [client_id for _, client_id in due]
        table.update((client_id, inf) for _, client_id in due)


def test_replaced_times_take_no_memory() -> None:
    timers = Timers()
    for at_s in range(10_000):
        timers.set(0, 1e6 + at_s)
    assert len(timers._heap) <= SLACK + 3
