"""Lost messages."""

from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Drop(Toxic):
    """Every message that it touches is lost: `toxicity` is the probability."""

    type = "drop"
    destroys = True

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return ()
