"""Clients whose updates come less often."""

from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Slow(Toxic):
    """The round trip of an update, from its task being sent until it is there, takes `factor` times as long.

        due_s <- began_s + factor * (due_s - began_s)

    A factor of 2 is half the frequency. Toxics before it in the list are slowed down with it; those behind it, and what
    the line adds, are not. Messages of other types are left alone.
    Source: FedHist (Jiang et al., 2023), docs/methods/heterogeneity.md#slow-clients
    """

    type = "slow"
    example_settings: ClassVar = {"factor": 2.0}

    factor: float = Field(gt=1, le=1e6, description="How many times as long an update takes.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        if flight.type != "update":
            return (flight,)
        return (flight.later((self.factor - 1) * (flight.due_s - flight.began_s)),)
