"""The laws of every registered toxic, and a toxic that violates each of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from typing_extensions import override

from support.toxic_laws import (
    LAWS,
    ToxicClass,
    a_message_is_independent_of_earlier_ones,
    made,
    messages_are_conserved_unless_loss_is_declared,
    messages_in_order_leave_in_order,
    no_message_leaves_before_it_enters,
    toxicity_is_the_share_of_affected_messages,
)
from unstale.toxics import registry
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.registry import TOXICS
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic

Law = Callable[[ToxicClass], None]

over_all_toxics = pytest.mark.parametrize("toxic_class", TOXICS.values(), ids=TOXICS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@over_all_toxics
def test_a_toxic_satisfies_a_law(toxic_class: ToxicClass, law: Law) -> None:
    law(toxic_class)


@over_all_toxics
def test_a_toxic_cannot_be_changed(toxic_class: ToxicClass) -> None:
    toxic = made(toxic_class)
    with pytest.raises(ValueError, match="frozen"):
        toxic.toxicity = 0.5


class Faulty(Toxic):
    type = "wrong"


class Loses(Faulty):
    """Loses messages without declaring it."""

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return ()


class ArrivesEarly(Faulty):
    """Delivers messages before they entered."""

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (flight.later(-1),)


class DelaysByCount(Faulty):
    """Delays a message by the number of those before it."""

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        rngs.cache[0] = rngs.cache.get(0, 0) + 1
        return (flight.later(rngs.cache[0]),)


class Overtakes(Faulty):
    """Reorders messages, which is allowed for `reorder` only."""

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (replace(flight.later(1), in_order=False),)


class DrawsByItself(Faulty):
    """Makes a random draw besides its toxicity."""

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        is_touched = self.toxicity == 1 or rngs.of_message(flight).random() < 0.5
        return (flight.later(1),) if is_touched else (flight,)


@pytest.mark.parametrize(
    ("toxic_class", "law"),
    [
        (Loses, messages_are_conserved_unless_loss_is_declared),
        (ArrivesEarly, no_message_leaves_before_it_enters),
        (DelaysByCount, a_message_is_independent_of_earlier_ones),
        (Overtakes, messages_in_order_leave_in_order),
        (DrawsByItself, toxicity_is_the_share_of_affected_messages),
    ],
)
def test_a_law_detects_a_faulty_toxic(toxic_class: ToxicClass, law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TOXICS, "wrong", toxic_class)
    with pytest.raises(AssertionError):
        law(toxic_class)
