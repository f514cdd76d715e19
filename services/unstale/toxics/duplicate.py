"""The toxic `duplicate`: sends copies of messages."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Constant, Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Duplicate(Toxic):
    """Sends a message and `copies` copies of it, each with its own delay, drawn from `after`.

    A copy without a delay directly follows the message. Other messages may overtake a copy with a delay.
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
