"""The network is gone for a while."""

from typing import ClassVar, Self

from pydantic import Field, model_validator
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Layer, Toxic
from unstale.toxics.trace import mistake


class Blackout(Toxic):
    """From start_s until end_s, and again every `every_s`, nothing gets through.

    layer message: what enters or would come out in that time is lost. layer tcp: what enters then begins its way at the
    end, and what would come out then comes out at the end, as TCP sends again what was lost.
    """

    type = "blackout"
    destroys = True
    example_settings: ClassVar = {"start_s": 10.0, "end_s": 20.0}

    every_s: float | None = Field(
        None, gt=0, description="It comes again after so long; left out: it does not."
    )
    layer: Layer = Field("message", description="message: messages are lost. tcp: bytes stand still.")

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.end_s is None:
            raise mistake("end_s is missing, expected when the blackout ends")
        if self.every_s is not None and self.every_s <= self.end_s - self.start_s:
            raise mistake(
                f"every_s is {self.every_s:g}, expected more than the length of a blackout, "
                f"which is {self.end_s - self.start_s:g}"
            )
        return self

    @override
    def is_on(self, at_s: float) -> bool:
        assert self.end_s is not None
        return self.start_s <= at_s and self._into_s(at_s) < self.end_s - self.start_s

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return () if self.layer == "message" else (flight.later(self._left_s(flight.sent_s)),)

    @override
    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return () if self.layer == "message" else (flight.later(self._left_s(flight.due_s)),)

    @property
    @override
    def below_messages(self) -> bool:
        return self.layer == "tcp"

    def _into_s(self, at_s: float) -> float:
        """How long ago it began last."""
        since_s = at_s - self.start_s
        return since_s if self.every_s is None else since_s % self.every_s

    def _left_s(self, at_s: float) -> float:
        """How long it goes on, at a time when it is on."""
        assert self.end_s is not None
        return self.end_s - self.start_s - self._into_s(at_s)
