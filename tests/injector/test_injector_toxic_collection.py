"""Toxics added, changed and removed while the injector runs; and every invalid request."""

from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from unstale.config import Settings
from unstale.config.scenario import client_info
from unstale.errors import UserError
from unstale.injector.toxic_collection import TOXICS_MAX, ToxicCollection, UnknownNameError
from unstale.toxics import registry
from unstale.toxics.link import Applied

SETTINGS = Settings(clients=10)

TOO_DEEP: list[Any] = []
for _ in range(30):
    TOO_DEEP = [TOO_DEEP]


def inventory(*toxics: Applied, relays: bool = False, group: frozenset[int] = frozenset(range(10))) -> ToxicCollection:
    """group: of all these toxics."""
    grouped = [replace(one, group=group) for one in toxics]
    return ToxicCollection(grouped, client_info=client_info(SETTINGS), seed=0, relays=relays)


def of_a_scenario(entry: dict[str, Any], clients: frozenset[int] | None = None) -> Applied:
    return Applied(registry.create(entry, "test"), clients)


SLOW = of_a_scenario({"type": "latency", "name": "all/latency", "delay": 2.0}, frozenset({1, 2}))


def names(made: ToxicCollection) -> list[str]:
    return [one.toxic.name for one in made.applied]


def test_a_toxic_is_appended_under_an_unused_name() -> None:
    made = inventory(SLOW)
    assert made.add({"type": "drop", "toxicity": 0.5}) == "drop"
    assert made.add({"type": "drop"}) == "drop-2"
    assert made.add({"type": "drop", "name": "mine", "clients": [3, "5-6"]}) == "mine"
    assert names(made) == ["all/latency", "drop", "drop-2", "mine"]
    assert made.applied[3].clients == frozenset({3, 5, 6})
    assert made.describe("mine")["touches"] == 3


def test_a_listed_toxic_can_be_added_again() -> None:
    made = inventory(SLOW)
    made.add({"type": "duplicate", "after": {"distribution": "exponential", "mean_s": 0.5}, "clients": [1]})
    again = inventory()
    for entry in made.listed():
        again.add({key: value for key, value in entry.items() if key != "touches"})
    assert [one.toxic for one in again.applied] == [one.toxic for one in made.applied]


def test_a_change_keeps_place_clients_and_unnamed_settings() -> None:
    made = inventory(SLOW)
    made.add({"type": "drop"})
    made.change("all/latency", {"toxicity": 0.25})
    (changed, _) = made.applied
    assert changed.clients == frozenset({1, 2})
    assert changed.toxic == registry.create(
        {"type": "latency", "name": "all/latency", "delay": 2.0, "toxicity": 0.25}, "test"
    )
    made.change("all/latency", {"toxicity": None, "clients": "all"})  # of its group
    assert made.applied[0].toxic.toxicity == 1.0
    assert made.applied[0].clients is None


def test_a_change_of_other_settings_keeps_the_selected_clients() -> None:
    applied = of_a_scenario({"type": "drop", "name": "a/drop", "clients": {"share": 0.5}}, frozenset({1}))
    made = inventory(applied, group=frozenset({1, 2}))
    made.change("a/drop", {"toxicity": 0.5})
    assert made.applied[0].clients == frozenset({1})


def test_a_change_of_clients_selects_among_those_of_the_group() -> None:
    made = inventory(SLOW, group=frozenset({1, 2, 3, 4}))
    for clients, expected in (("all", {1, 2, 3, 4}), (["0-2"], {1, 2}), (None, {1, 2, 3, 4})):
        made.change("all/latency", {"clients": clients})
        assert made.applied[0].clients == expected
    made.change("all/latency", {"clients": {"share": 0.5}})
    chosen = made.applied[0].clients
    assert chosen is not None and len(chosen) == 2 and chosen < {1, 2, 3, 4}
    with pytest.raises(UserError, match=r"clients is \[9\], which matches nobody"):
        made.change("all/latency", {"clients": [9]})


def test_reset_restores_the_scenario() -> None:
    made = inventory(SLOW)
    made.add({"type": "drop"})
    made.remove("all/latency")
    assert names(made) == ["drop"]
    made.reset()
    assert made.applied == (replace(SLOW, group=frozenset(range(10))),)


def test_an_immediate_blackout_starts_now_and_finished_ones_are_dropped() -> None:
    made = inventory()
    assert made.black_out({"seconds": 5, "clients": [0, 1]}, at_s=100.0) == "blackout now"
    (one,) = made.applied
    assert (one.toxic.start_s, one.toxic.end_s, one.clients) == (100.0, 105.0, frozenset({0, 1}))
    assert made.black_out({"seconds": 0.95}, at_s=104.0) == "blackout now-2"
    made.black_out({"seconds": 1}, at_s=104.9)
    assert names(made) == ["blackout now", "blackout now-2", "blackout now-3"]
    made.black_out({"seconds": 1}, at_s=105.0)
    assert len(made.applied) == 2


def test_only_immediate_blackouts_are_dropped_and_only_at_the_next_one() -> None:
    other = of_a_scenario({"type": "blackout", "name": "blackout nowadays", "start_s": 1.0, "end_s": 2.0})
    made = inventory(other)
    made.black_out({"seconds": 1}, at_s=10.0)
    with pytest.raises(UserError, match="client 77"):
        made.black_out({"seconds": 1, "clients": [77]}, at_s=20.0)
    assert names(made) == ["blackout nowadays", "blackout now"]
    made.black_out({"seconds": 1}, at_s=20.0)
    assert names(made) == ["blackout nowadays", "blackout now"]
    assert made.applied[1].toxic.start_s == 20.0


def test_a_copy_is_changed_independently() -> None:
    made = inventory(SLOW)
    aside = copy(made)
    aside.add({"type": "drop"})
    assert (names(made), names(aside)) == (["all/latency"], ["all/latency", "drop"])


def test_the_relay_executes_the_tcp_layer() -> None:
    made = inventory(SLOW, relays=True)
    made.add({"type": "bandwidth", "bytes_per_s": 1000, "layer": "tcp"})
    made.add({"type": "disconnect"})
    assert [one.toxic.type for one in made.of_messages] == ["latency", "disconnect"]
    assert [one.toxic.type for one in made.of_bytes] == ["bandwidth"]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"type": "dropp"}, "the toxic: unknown toxic 'dropp'; did you mean 'drop'?"),
        ({}, "the toxic has no type"),
        ([], r"the toxic is \[\], expected a mapping"),
        ({"type": "drop", "toxicity": 2}, r"the toxic \(drop\): toxicity is 2"),
        ({"type": "drop", "toxic": 1}, r"unknown setting 'toxic'; did you mean 'toxicity'"),
        ({"type": "latency", "delay": -1}, "delay"),
        ({"type": "drop", "clients": [10]}, "client 10 is none of the 10 clients"),
        ({"type": "drop", "name": "all/latency"}, "there is a toxic 'all/latency' already"),
        ({"type": "disconnect"}, "below the messages; start the injector with injector.tcp true"),
        ({"type": "bandwidth", "bytes_per_s": 1, "layer": "tcp"}, "injector.tcp true"),
        ({"type": "latency", "delay": {"distribution": "trace", "file": "/etc/passwd"}}, "file names a file"),
        ({"type": "dropout", "trace": "/etc/passwd"}, "trace names a file"),
        ({"type": "drop", "clients": [1] * 1001}, "clients has 1001 entries, expected at most 1000"),
        ({"type": "drop", "clients": TOO_DEEP}, "more than 20 levels deep"),
        ({"type": "latency", "delay": "1e300"}, r"delay is '1e300', expected seconds"),
        ({"type": "latency", "delay": {"distribution": "constant", "value_s": "1e300"}}, r"at most 1e\+09"),
        ({"type": "bandwidth", "bytes_per_s": 1e-320}, "is 1e-320, expected at least 0.001"),
        ({"type": "reorder", "delay": 1, "start_s": 1e13}, r"the number 10000000000000.0, expected none over 1e\+12"),
    ],
)
def test_an_invalid_toxic_gets_a_one_sentence_error_and_changes_nothing(entry: Any, sentence: str) -> None:
    made = inventory(SLOW)
    with pytest.raises(UserError, match=sentence):
        made.add(entry)
    assert made.applied == (replace(SLOW, group=frozenset(range(10))),)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([], "expected a JSON object"),
        ({"name": "other"}, "name cannot be changed"),
        ({"type": "drop"}, "type cannot be changed"),
        ({"delay": None}, "delay is missing"),
        ({"clients": "nobody"}, "clients is 'nobody', expected"),
        ({"end_s": -1}, "end_s is -1, expected more than 0"),
    ],
)
def test_an_invalid_change_changes_nothing(changes: Any, sentence: str) -> None:
    made = inventory(SLOW)
    with pytest.raises(UserError, match=sentence):
        made.change("all/latency", changes)
    assert made.applied == (replace(SLOW, group=frozenset(range(10))),)


def test_an_unknown_name_gets_an_error_with_the_nearest_one() -> None:
    made = inventory(SLOW)
    with pytest.raises(UnknownNameError, match=r"there is no toxic 'all/latenc'; did you mean 'all/latency'"):
        made.remove("all/latenc")
    with pytest.raises(UnknownNameError, match="there is no toxic 'x', and no other"):
        inventory().describe("x")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, "the blackout is null, expected a mapping"),
        ({}, "the blackout: seconds is missing"),
        ({"seconds": 0}, "seconds is 0, expected more than 0"),
        ({"seconds": True}, "seconds is True"),
        ({"seconds": 1e999}, "seconds is inf"),
        ({"seconds": 10**400}, "seconds is 1000.*, expected"),
        ({"seconds": 5, "client": [1]}, "unknown setting 'client'; did you mean 'clients'"),
        ({"seconds": 5, "clients": [77]}, "client 77 is none"),
        ({"seconds": 5, "layer": "tcp"}, "injector.tcp true"),
    ],
)
def test_an_invalid_blackout_is_refused(entry: Any, sentence: str) -> None:
    made = inventory()
    with pytest.raises(UserError, match=sentence):
        made.black_out(entry, at_s=1.0)
    assert made.applied == ()


def test_the_number_of_toxics_is_bounded() -> None:
    made = inventory()
    for _ in range(TOXICS_MAX):
        made.add({"type": "drop"})
    with pytest.raises(UserError, match=r"there are 100 toxics, the most that is allowed; remove one first"):
        made.add({"type": "drop"})


def test_a_tcp_toxic_has_no_message_type() -> None:
    made = inventory(relays=True)
    with pytest.raises(UserError, match="messages goes with layer message only"):
        made.add({"type": "bandwidth", "bytes_per_s": 1, "layer": "tcp", "messages": ["task"]})
