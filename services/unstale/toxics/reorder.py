"""Messages that others overtake."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from unstale.toxics.delay import Delay
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Reorder(Toxic):
    """A message is held back for a draw of `delay`, and messages sent after it may come out before it.

    It keeps to no order itself either: where those before it are held up for longer, it overtakes them.
    """

    type = "reorder"
    example_settings: ClassVar = {"delay": 0.5}

    delay: Delay = Field(description="How long a message is held back: seconds, or a distribution.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        held_s = self.delay.draw(rngs.of_message(flight), flight.sent_s, flight.number)
        return (replace(flight.later(held_s), in_order=False),)
