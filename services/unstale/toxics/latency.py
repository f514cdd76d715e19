"""Delayed messages."""

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Latency(Toxic):
    """Every message comes out a draw of `delay` later."""

    type = "latency"

    delay: Delay = Field(description="Delay: seconds, or a distribution.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (flight.later(self.delay.draw(rngs.of_message(flight), flight.sent_s, flight.number)),)
