"""Interruptions of the network, one or periodic."""

from typing import Self

from pydantic import Field, model_validator
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Layer, Toxic


class Blackout(Toxic):
    """From start_s until end_s, and again every `every_s`, no message passes.

    layer message: messages that would enter or leave the link in that time are lost. layer tcp: they are delayed until
    the end of the blackout, because TCP retransmits lost bytes.
    """

    type = "blackout"
    destroys = True

    every_s: float | None = Field(None, gt=0, description="Period of the blackouts; left out: one blackout.")
    layer: Layer = Field("message", description="message: messages are lost. tcp: bytes are delayed.")

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.end_s is None:
            raise ValueError("end_s is missing, expected the end of the blackout")
        if self.every_s is not None and self.every_s <= self.end_s - self.start_s:
            raise ValueError(
                f"every_s is {self.every_s:g}, expected more than the length of a blackout, "
                f"which is {self.end_s - self.start_s:g}"
            )
        return self

    @override
    def is_on(self, at_s: float) -> bool:
        assert self.end_s is not None
        return self.start_s <= at_s and self._since_start_s(at_s) < self.end_s - self.start_s

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return () if self.layer == "message" else (flight.later(self._remaining_s(flight.sent_s)),)

    @override
    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return () if self.layer == "message" else (flight.later(self._remaining_s(flight.due_s)),)

    def _since_start_s(self, at_s: float) -> float:
        """Time since the start of the latest blackout."""
        since_s = at_s - self.start_s
        return since_s if self.every_s is None else since_s % self.every_s

    def _remaining_s(self, at_s: float) -> float:
        """Time to the end of the current blackout."""
        assert self.end_s is not None
        return self.end_s - self.start_s - self._since_start_s(at_s)
