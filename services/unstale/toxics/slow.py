"""Clients with longer round trips."""

from pydantic import Field
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Slow(Toxic):
    """The time from a task to the arrival of its update is multiplied by `factor`.

        due_s <- began_s + factor * (due_s - began_s)

    A factor of 2 halves the frequency. It multiplies the delays of the toxics before it in the list, but neither those
    of later toxics nor those of the channel. Messages of other types are not changed.
    Source: FedHist (Jiang et al., 2023), docs/methods/heterogeneity.md#slow-clients
    """

    type = "slow"

    factor: float = Field(gt=1, le=1e6, description="Factor of the round trip time.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        if flight.type != "update":
            return (flight,)
        return (flight.later((self.factor - 1) * (flight.due_s - flight.began_s)),)
