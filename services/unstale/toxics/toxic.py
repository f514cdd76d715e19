"""The interface of a toxic: one message in flight in, none, one or several out. A toxic a file, and no state."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from unstale.toxics.client_filter import ClientFilter
from unstale.toxics.client_info import ClientInfo
from unstale.toxics.in_flight import InFlightMessage, MessageType
from unstale.toxics.rng import ToxicRng
from unstale.toxics.trace import expected, mistake

Layer = Literal["message", "tcp"]


def _printable(name: str) -> str:
    if not name.isprintable():
        raise expected("a name that can be printed on a line")
    return name


Name = Annotated[str, AfterValidator(_printable)]
"""Of a group or a toxic: it stands in sentences, tables and metrics."""


class Toxic(BaseModel, ABC):
    """Settings that every toxic has. Frozen: a change makes another toxic.

    type: it is registered under. destroys: it may lose messages; one that does not conserves them all.
    example_settings: what it is tested with, where settings are required.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    type: ClassVar[str]
    destroys: ClassVar[bool] = False
    example_settings: ClassVar[Mapping[str, Any]] = {}

    name: Name = Field(
        "", max_length=128, description="What it is called in this scenario; made up if left out."
    )
    toxicity: float = Field(1.0, ge=0, le=1, description="Share of the messages that it touches.")
    direction: Literal["up", "down", "both"] = Field(
        "both", description="up is client to server, down is server to client."
    )
    messages: tuple[MessageType, ...] | None = Field(
        None, min_length=1, description="Types of messages that it touches; left out: all."
    )
    clients: ClientFilter | None = Field(
        None, description="Whose messages; left out: those of the whole group."
    )
    start_s: float = Field(0.0, ge=0, description="When it begins, in seconds of the scenario.")
    end_s: float | None = Field(None, gt=0, description="When it ends; left out: never.")

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise mistake(f"end_s is {self.end_s:g}, expected more than start_s, which is {self.start_s:g}")
        return self

    @abstractmethod
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        """What becomes of a message that it touches, as it enters. The seconds that it adds go to `due_s`."""

    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:  # noqa: ARG002
        """What becomes of a message that is about to come out, at `due_s`, its way along the line done.

        For a toxic that lies in wait there; a message may meet it again after another toxic held it up.
        """
        return (flight,)

    def is_on(self, at_s: float) -> bool:
        """Whether it touches messages at this time of the scenario."""
        return self.start_s <= at_s and (self.end_s is None or at_s < self.end_s)

    @property
    def below_messages(self) -> bool:
        """Whether it is carried out on the bytes of a connection, where there is one."""
        return False

    def settled(
        self,
        client_info: ClientInfo,  # noqa: ARG002
        clients: Collection[int] | None = None,  # noqa: ARG002
    ) -> Self:
        """The same toxic, knowing the clients of the run. clients: those that it applies to; None for all of them.

        Raises UserError when it makes no sense for them.
        """
        return self
