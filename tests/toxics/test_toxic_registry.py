"""Toxics by type, from plain data; errors of one sentence; plug-ins."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from typing_extensions import override

from support.toxics import message
from unstale import plugins
from unstale.errors import UserError
from unstale.toxics import registry
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.latency import Latency
from unstale.toxics.registry import TOXICS, create, find, names
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic

WHERE = "scenario lte.yaml, group everyone, toxic 2"


class Nothing(Toxic):
    """Does nothing."""

    type = "nothing"

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (flight,)


def plug_in(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Install exactly these entry points."""
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))


def entry_point(value: str, name: str = "nothing") -> EntryPoint:
    return EntryPoint(name=name, value=value, group=registry.REGISTRY.group)


def sentence(mapping: Any) -> str:
    with pytest.raises(UserError) as raised:
        create(mapping, WHERE)
    return str(raised.value).removeprefix(WHERE)


def test_the_built_in_toxics_are_listed() -> None:
    expected = "bandwidth blackout corrupt disconnect drop dropout duplicate latency reorder slow"
    assert names() == tuple(expected.split())


def test_a_toxic_is_built_from_plain_data() -> None:
    toxic = create({"type": "latency", "delay": 0.5, "toxicity": 0.1, "direction": "up", "messages": ["update"]}, WHERE)
    assert isinstance(toxic, Latency)
    assert (toxic.toxicity, toxic.direction, toxic.messages) == (0.1, "up", ("update",))


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        (5, " is 5, expected a mapping with a type"),
        (None, " is null, expected a mapping with a type"),
        ({"delay": 1}, f" has no type, expected one of {', '.join(TOXICS)}"),
        ({"type": ["drop"]}, f": type is ['drop'], expected one of {', '.join(TOXICS)}"),
        ({"type": "latensy"}, ": unknown toxic 'latensy'; did you mean 'latency'?"),
        ({"type": "latency"}, " (latency): delay is missing"),
        ({"type": "latency", "delay": -0.5}, " (latency): delay.value_s is -0.5, expected at least 0"),
        ({"type": "drop", "toxicty": 0.5}, " (drop): unknown setting 'toxicty'; did you mean 'toxicity'?"),
        ({"type": "drop", "toxicity": 1.5}, " (drop): toxicity is 1.5, expected at most 1"),
        ({"type": "drop", "toxicity": -0.1}, " (drop): toxicity is -0.1, expected at least 0"),
        ({"type": "drop", "toxicity": float("nan")}, " (drop): toxicity is nan, expected a finite number"),
        ({"type": "drop", "toxicity": "often"}, " (drop): toxicity is 'often', expected a number"),
        ({"type": "drop", "direction": "left"}, " (drop): direction is 'left', expected 'up', 'down' or 'both'"),
        ({"type": "drop", "messages": "task"}, " (drop): messages is 'task', expected a list"),
        ({"type": "drop", "messages": []}, " (drop): messages is [], expected at least one entry"),
        ({"type": "drop", "start_s": -1}, " (drop): start_s is -1, expected at least 0"),
        ({"type": "drop", "start_s": 5, "end_s": 5}, " (drop): end_s is 5, expected more than start_s, which is 5"),
        ({"type": "bandwidth", "bytes_per_s": 0}, " (bandwidth): bytes_per_s is 0, expected at least 0.001"),
        (
            {"type": "bandwidth", "bytes_per_s": 1, "layer": "ip"},
            " (bandwidth): layer is 'ip', expected 'message' or 'tcp'",
        ),
        ({"type": "blackout"}, " (blackout): end_s is missing, expected the end of the blackout"),
        (
            {"type": "blackout", "start_s": 5, "end_s": 15, "every_s": 10},
            " (blackout): every_s is 10, expected more than the length of a blackout, which is 10",
        ),
        ({"type": "corrupt", "bits": 0}, " (corrupt): bits is 0, expected at least 1"),
        ({"type": "corrupt", "bits": 1.5}, " (corrupt): bits is 1.5, expected a whole number"),
        ({"type": "disconnect", "down_s": -1}, " (disconnect): down_s is -1, expected at least 0"),
        ({"type": "duplicate", "copies": 0}, " (duplicate): copies is 0, expected at least 1"),
        ({"type": "slow", "factor": 1}, " (slow): factor is 1, expected more than 1"),
        ({"type": "dropout"}, " (dropout): expected exactly one of p, p_by_client, p_min, on_s with off_s, and trace"),
        ({"type": "dropout", "p": 1.1}, " (dropout): p is 1.1, expected at most 1"),
        ({"type": "dropout", "p_by_client": [0.1, 2]}, " (dropout): p_by_client.1 is 2, expected at most 1"),
        ({"type": "dropout", "on_s": 5}, " (dropout): on_s and off_s go together, expected both or none of them"),
        ({"type": "dropout", "on_s": -5, "off_s": 1}, " (dropout): on_s is -5, expected at least 0.001"),
        ({"type": "dropout", "on_s": 1e10, "off_s": 1}, " (dropout): on_s is 10000000000.0, expected at most 1e+09"),
        (
            {"type": "dropout", "p": 0.5, "by": "adversarial"},
            " (dropout): by is 'adversarial', which goes with p_min only; leave it out or give p_min",
        ),
        (
            {"type": "dropout", "p": 0.5, "messages": ["update"]},
            " (dropout): a dropout by rounds affects tasks only; leave out direction and messages",
        ),
        (
            {"type": "dropout", "p": 0.5, "toxicity": 0.5},
            " (dropout): toxicity is 0.5, but p is the probability of a dropout by rounds; leave out toxicity",
        ),
        *(
            (
                {"type": "dropout", "p_min": 0.5, **window},
                " (dropout): a dropout by rounds has no times in seconds; leave out start_s and end_s",
            )
            for window in ({"start_s": 1}, {"end_s": 5})
        ),
        ({"type": "drop", "name": "a\nb"}, " (drop): name is 'a\\nb', expected printable characters on one line"),
        ({"type": "drop", True: 1}, " (drop): True is not the name of a setting"),
        ({"type": "dropout", "trace": "a\0"}, " (dropout): trace is 'a\\x00', expected a path of printable characters"),
    ],
    ids=str,
)
def test_a_mistake_gets_a_one_sentence_error(mapping: Any, expected: str) -> None:
    assert sentence(mapping) == expected


def test_a_long_value_is_truncated() -> None:
    assert len(sentence({"type": "drop", "toxicity": "x" * 10_000})) < 200


def test_a_plug_in_is_a_toxic_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    point = entry_point("plug:Nothing")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Nothing)
    plug_in(monkeypatch, point)
    assert "nothing" in names()
    assert create({"type": "nothing"}, WHERE) == Nothing()
    assert create({"type": "nothing"}, WHERE).apply(message(), ToxicRng(0, "nothing")) == (message(),)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([entry_point("no_module:Toxic")], "toxic 'nothing' cannot be imported from no_module:Toxic"),
        ([entry_point("math:pi")], "toxic 'nothing' is math:pi, expected a class derived from"),
        ([entry_point("math:pi"), entry_point("math:e")], "toxic 'nothing' is registered by several packages"),
    ],
)
def test_an_invalid_plug_in_gets_an_error(
    monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint], expected: str
) -> None:
    plug_in(monkeypatch, *points)
    with pytest.raises(UserError, match=expected):
        find("nothing")


def test_a_built_in_type_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, entry_point("math:pi", name="drop"))
    assert find("drop") is TOXICS["drop"]
    assert names().count("drop") == 1
