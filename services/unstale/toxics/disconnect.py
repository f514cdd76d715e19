"""Broken connections."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Duration
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Disconnect(Toxic):
    """Breaks the connection of the client: all its messages in flight are lost.

    The client cannot reconnect for `down_s`.
    """

    type = "disconnect"
    destroys = True

    down_s: Duration = Field(0.0, description="Time in which the client cannot connect again.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (replace(flight, cuts=True, down_s=self.down_s),)
