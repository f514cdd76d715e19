"""Messages come more than once."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Constant, Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Duplicate(Toxic):
    """The message itself, and `copies` of it, each a draw of `after` later.

    A copy that comes at once keeps its place in the line, right behind the message. A later one does not hold up what
    follows: other messages may come out before it.
    """

    type = "duplicate"

    copies: int = Field(1, ge=1, le=100, description="Of each message.")
    after: Delay = Field(
        Constant(value_s=0), description="How much later a copy comes: seconds, or a distribution."
    )

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        rng = rngs.of_message(flight)
        copies = []
        for copy in range(1, self.copies + 1):
            after_s = self.after.draw(rng, flight.sent_s, flight.number)
            in_order = flight.in_order and after_s == 0
            copies.append(replace(flight.later(after_s), copy=copy, in_order=in_order))
        return (flight, *copies)
