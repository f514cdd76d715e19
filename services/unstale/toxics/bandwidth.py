"""Limited bytes per second."""

from dataclasses import replace

from pydantic import Field
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Layer, Toxic


class Bandwidth(Toxic):
    """A message occupies its channel for size / rate seconds, after earlier ones.

        occupies_s += size_bytes / bytes_per_s

    A channel is one direction of one client's connection: clients do not share it.
    """

    type = "bandwidth"

    bytes_per_s: float = Field(ge=1e-3, description="Rate of each channel.")
    layer: Layer = Field("message", description="tcp: the injector delays bytes instead of whole messages.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (replace(flight, occupies_s=flight.occupies_s + flight.size_bytes / self.bytes_per_s),)
