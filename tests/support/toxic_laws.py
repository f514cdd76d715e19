"""The laws of every toxic. A law takes the class of a toxic, and asserts."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from math import inf, sqrt
from typing import Any

from support.toxics import DOWN, SEED, UP, draws, message, traffic
from unstale.seeds import Stream, stream
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.link import Applied, ToxicLink
from unstale.toxics.registry import create, plain
from unstale.toxics.scenario import Scenario
from unstale.toxics.toxic import Toxic

ToxicClass = type[Toxic]

EXAMPLES: dict[str, dict[str, Any]] = {
    "bandwidth": {"bytes_per_s": 1e6},
    "blackout": {"start_s": 10.0, "end_s": 20.0},
    "dropout": {"on_s": 10.0, "off_s": 5.0},
    "latency": {"delay": {"distribution": "exponential", "mean_s": 0.5}},
    "reorder": {"delay": 0.5},
    "slow": {"factor": 2.0},
}
"""Settings of the toxics that require some, by type."""


def made(toxic_class: ToxicClass, **settings: Any) -> Toxic:
    return create({**example(toxic_class), **settings}, "here")


def example(toxic_class: ToxicClass) -> dict[str, Any]:
    return {"type": toxic_class.type, "name": "toxic", **EXAMPLES.get(toxic_class.type, {})}


def through(toxic: Toxic, clients: frozenset[int] | None = None) -> ToxicLink:
    return ToxicLink([Applied(toxic, clients)], SEED)


def some() -> list[InFlightMessage]:
    """Every seventh message of the first 30 seconds: of all types, before, in and after the window of a blackout."""
    return list(islice(traffic(), 0, 3000, 7))


def arguments_are_not_modified(toxic_class: ToxicClass) -> None:
    toxic, its_draws = made(toxic_class), draws()
    before = toxic.model_dump()
    for flight in some():
        same = replace(flight)
        toxic.apply(flight, its_draws)
        toxic.apply_at_the_end(flight, its_draws)
        assert flight == same
    assert toxic.model_dump() == before


def a_message_is_independent_of_earlier_ones(toxic_class: ToxicClass) -> None:
    toxic, used = made(toxic_class), draws()
    flights = some()
    in_turn = {flight.number: toxic.apply(flight, used) for flight in flights}
    for place in stream(SEED, Stream.TOXICS).permutation(len(flights)):
        flight = flights[place]
        assert toxic.apply(flight, used) == in_turn[flight.number]
    for flight in flights[::20]:
        assert toxic.apply(flight, draws()) == in_turn[flight.number]


def messages_are_conserved_unless_loss_is_declared(toxic_class: ToxicClass) -> None:
    way = through(made(toxic_class))
    for flight in some():
        out = way.send(flight)
        copies = [one.copy for one in out]
        assert len(set(copies)) == len(copies)
        if toxic_class.destroys:
            assert len(out) <= 1
        else:
            assert copies.count(0) == 1


def no_message_leaves_before_it_enters(toxic_class: ToxicClass) -> None:
    way = through(made(toxic_class))
    for flight in some():
        for out in way.send(flight):
            assert flight.sent_s <= flight.due_s <= out.due_s < inf
            assert out.occupies_s >= 0


def toxicity_0_has_no_effect(toxic_class: ToxicClass) -> None:
    unaffected(through(made(toxic_class, toxicity=0)), some())


def toxicity_is_the_share_of_affected_messages(toxic_class: ToxicClass) -> None:
    share, wanted = 0.3, 10_000
    always, its_draws = made(toxic_class), draws()
    concerned = Applied(always)
    at_12_s = (replace(one, sent_s=12.0, due_s=12.0, began_s=11.0) for one in traffic(clients=2000))
    touched = (
        one
        for one in islice(at_12_s, 20 * wanted)
        if concerned.concerns(one, one.sent_s) and always.apply(one, its_draws) != (one,)
    )
    flights = list(islice(touched, wanted))
    assert len(flights) == wanted
    way = through(made(toxic_class, toxicity=share))
    for flight in flights:
        way.send(flight)
    assert abs(way.counts.touched["toxic"] - share * wanted) < 4 * sqrt(wanted * share * (1 - share))


def messages_in_order_leave_in_order(toxic_class: ToxicClass) -> None:
    for toxicity in (1.0, 0.5):
        way = through(made(toxic_class, toxicity=toxicity))
        last_s = 0.0
        for number in range(1, 1000):
            sent_s = 0.03 * number
            for out in way.send(message(number=number, sent_s=sent_s, began_s=sent_s - 1)):
                if out.in_order:
                    assert out.due_s >= last_s
                    last_s = out.due_s
                else:
                    assert out.copy or toxic_class.type == "reorder"


def a_toxic_has_no_effect_outside_its_limits(toxic_class: ToxicClass) -> None:
    flights = some()
    late = made(toxic_class, start_s=1000.0, end_s=1010.0)
    unaffected(through(late), flights)
    early = made(toxic_class, start_s=0.0, end_s=0.005)
    unaffected(through(early), flights[1:])
    unaffected(through(made(toxic_class, direction="up")), [one for one in flights if one.direction == DOWN])
    unaffected(through(made(toxic_class, direction="down")), [one for one in flights if one.direction == UP])
    of_two_types = made(toxic_class, messages=("update", "hello"))
    unaffected(through(of_two_types), [one for one in flights if one.type not in ("update", "hello")])
    unaffected(through(made(toxic_class), frozenset((1, 2))), [one for one in flights if one.client_id not in (1, 2)])


def doubling_the_time_doubles_the_delays(toxic_class: ToxicClass) -> None:
    scenario = Scenario.parsed({"groups": [{"name": "all", "toxics": [example(toxic_class)]}]}, "here")
    once, twice = (through(one.groups[0].toxics[0]) for one in (scenario, scenario.scaled(2)))
    for flight in some():
        assert twice.send(stretched(flight)) == tuple(map(stretched, once.send(flight)))


def stretched(flight: InFlightMessage) -> InFlightMessage:
    times = ("sent_s", "due_s", "began_s", "occupies_s", "down_s")
    return replace(flight, **{name: 2 * getattr(flight, name) for name in times})


def plain_data_restores_an_equal_toxic(toxic_class: ToxicClass) -> None:
    toxic = made(toxic_class, toxicity=0.5, messages=["task", "update"], clients=[0, "2-4"])
    assert create(json.loads(json.dumps(plain(toxic))), "here") == toxic


def a_toxic_and_its_fields_are_documented(toxic_class: ToxicClass) -> None:
    assert toxic_class.__doc__
    for name, field in toxic_class.model_fields.items():
        assert field.description, name


def unaffected(way: ToxicLink, flights: list[InFlightMessage]) -> None:
    for flight in flights:
        assert way.send(flight) == (flight,)
    assert not way.counts.touched


LAWS: tuple[Callable[[ToxicClass], None], ...] = (
    arguments_are_not_modified,
    a_message_is_independent_of_earlier_ones,
    messages_are_conserved_unless_loss_is_declared,
    no_message_leaves_before_it_enters,
    toxicity_0_has_no_effect,
    toxicity_is_the_share_of_affected_messages,
    messages_in_order_leave_in_order,
    a_toxic_has_no_effect_outside_its_limits,
    doubling_the_time_doubles_the_delays,
    plain_data_restores_an_equal_toxic,
    a_toxic_and_its_fields_are_documented,
)
