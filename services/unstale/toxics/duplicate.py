"""Copies of messages."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Constant, Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Duplicate(Toxic):
    """The message itself, and `copies` of it, each a draw of `after` later.

    A copy without a delay keeps its position behind the message. Other messages may overtake a later copy.
    """

    type = "duplicate"

    copies: int = Field(1, ge=1, le=100, description="Copies of each message.")
    after: Delay = Field(Constant(value_s=0), description="Delay of a copy: seconds, or a distribution.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        rng = rngs.of_message(flight)
        copies = []
        for copy in range(1, self.copies + 1):
            after_s = self.after.draw(rng, flight.sent_s, flight.number)
            in_order = flight.in_order and after_s == 0
            copies.append(replace(flight.later(after_s), copy=copy, in_order=in_order))
        return (flight, *copies)
