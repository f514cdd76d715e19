"""Messages out of order."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Reorder(Toxic):
    """A message is delayed by a draw of `delay`; later messages may overtake it.

    It may overtake earlier messages that are delayed for longer.
    """

    type = "reorder"

    delay: Delay = Field(description="Delay: seconds, or a distribution.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        delay_s = self.delay.draw(rngs.of_message(flight), flight.sent_s, flight.number)
        return (replace(flight.later(delay_s), in_order=False),)
