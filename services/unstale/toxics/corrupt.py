"""The toxic `corrupt`: flips bits of messages."""

from dataclasses import replace
from typing import Literal

from pydantic import Field
from typing_extensions import override

from unstale.toxics.in_flight import InFlightMessage, MessageType
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic


class Corrupt(Toxic):
    """Flips `bits` different bits in the part `where` of a message. A message without this part is not changed.

    `anywhere` rarely hits the header of a task or an update, because nearly all their bits are payload.
    """

    type = "corrupt"

    messages: tuple[MessageType, ...] | None = Field(
        ("task", "update", "chunk"),
        min_length=1,
        description="Types of messages that it changes. Only chunks have a checksum: a hello or a welcome with a "
        "flipped bit may name another client or other settings.",
    )
    bits: int = Field(1, ge=1, le=4096, description="Flipped bits of a message; all bits if it has fewer.")
    where: Literal["anywhere", "header", "payload"] = Field("anywhere", description="Part of a message.")

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        first_byte = flight.header_bytes if self.where == "payload" else 0
        end_byte = flight.header_bytes if self.where == "header" else flight.size_bytes
        candidates = 8 * (end_byte - first_byte)
        if candidates <= 0:
            return (flight,)
        rng = rngs.of_message(flight)
        positions = rng.choice(candidates, size=min(self.bits, candidates), replace=False, shuffle=False)
        flipped = {8 * first_byte + int(bit) for bit in positions}
        damage = flipped ^ set(flight.damage)  # a bit that is flipped twice is not changed
        return (replace(flight, damage=tuple(sorted(damage))),)
