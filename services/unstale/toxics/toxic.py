"""The interface of a toxic, which maps one message to none, one or several."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from unstale.settings.values import Section
from unstale.toxics.client_filter import ClientFilter, ClientInfo
from unstale.toxics.in_flight import InFlightMessage, MessageType
from unstale.toxics.rng import ToxicRng

Layer = Literal["message", "tcp"]


def _printable(name: str) -> str:
    if not name.isprintable():
        raise PydanticCustomError("expected", "printable characters on one line")
    return name


Name = Annotated[str, AfterValidator(_printable)]
"""Name of a group or a toxic, for messages, tables and metrics."""


class Toxic(Section):
    """Settings of every toxic. Frozen: a change makes a new toxic."""

    type: ClassVar[str]
    destroys: ClassVar[bool] = False  # whether messages may be lost

    name: Name = Field("", max_length=128, description="Name in the scenario; generated if left out.")
    toxicity: float = Field(1.0, ge=0, le=1, description="Share of the messages that it touches.")
    direction: Literal["up", "down", "both"] = Field(
        "both", description="up is client to server, down is server to client."
    )
    messages: tuple[MessageType, ...] | None = Field(
        None, min_length=1, description="Types of messages that it touches; left out: all."
    )
    clients: ClientFilter | None = Field(
        None, description="Clients whose messages it touches; left out: those of the group."
    )
    start_s: float = Field(0.0, ge=0, description="Start, in seconds of the scenario.")
    end_s: float | None = Field(None, gt=0, description="End, in seconds of the scenario; left out: never.")

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s is {self.end_s:g}, expected more than start_s, which is {self.start_s:g}")
        return self

    @abstractmethod
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        """Apply the toxic to a message that enters. A delay is added to `due_s`."""

    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:  # noqa: ARG002
        """Apply the toxic to a message that would come out at `due_s`.

        It is called again for the same message after another toxic delays it.
        """
        return (flight,)

    def is_on(self, at_s: float) -> bool:
        """Whether it touches messages at this time of the scenario."""
        return self.start_s <= at_s and (self.end_s is None or at_s < self.end_s)

    @property
    def below_messages(self) -> bool:
        """Whether it acts on the bytes of a connection, by its setting `layer`."""
        return getattr(self, "layer", "message") == "tcp"

    def settled(self, client_info: ClientInfo, clients: Collection[int] | None = None) -> Self:  # noqa: ARG002
        """The same toxic, adapted to the clients that it applies to; None for all.

        Raises UserError for settings that do not fit them.
        """
        return self
