"""Messages are lost."""

from typing_extensions import override

from unstale.toxics.draws import Draws
from unstale.toxics.flight import Flight
from unstale.toxics.toxic import Toxic


class Drop(Toxic):
    """Every message that it touches is lost: `toxicity` is the probability."""

    type = "drop"
    destroys = True

    @override
    def apply(self, flight: Flight, draws: Draws) -> tuple[Flight, ...]:
        return ()
