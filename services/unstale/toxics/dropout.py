"""Clients that come and go: round by round, or in time."""

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.toxics.availability import DrawnAvailability, RecordedAvailability
from unstale.toxics.client_info import ClientInfo
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic
from unstale.toxics.trace import mistake, read_presence

Probability = Annotated[float, Field(ge=0, le=1)]

_MEAN_S_MIN, _MEAN_S_MAX = 1e-3, 1e9  # what is shorter or longer no run notices
_ROUNDS_MAX = 10**9


class Dropout(Toxic):
    """Clients are not always there. Exactly one of these says when:

    p, p_by_client or p_min: in each round, by chance; a client that is not there declines its task. With p_min each has
    a probability of its own, p_i, drawn once from U(p_min, 1), or made from the smallest class c_i that it holds:

        p_i = p_min + (1 - p_min) * c_i / (classes - 1)     by: adversarial

    everyone_before: in the first so many rounds everybody is there all the same (versions 0 to everyone_before - 1).
    Policies are told p_i, which is that of every later round.

    on_s and off_s: it is there, then away, in turn, for times drawn from exponential distributions with these means;
    at start_s it is there. trace: CSV `client,start_s,end_s`, an absolute path, says when each client is there; it is
    read once and kept as `present`. While a client is away, what enters or would come out is lost, both ways.

    Draws of a round belong to client and round (the version that the task carries) alone, so that they are the same
    under any name, and of two dropouts by rounds the stricter one decides.
    Source: FedAR (Jiang et al., 2024), docs/methods/heterogeneity.md#availability
    """

    type = "dropout"
    destroys = True
    example_settings: ClassVar = {"on_s": 10.0, "off_s": 5.0}

    p: float | None = Field(None, ge=0, le=1, description="How likely each client is there in a round.")
    p_by_client: tuple[Probability, ...] | None = Field(
        None, description="The same, a number for each client."
    )
    p_min: float | None = Field(None, ge=0, le=1, description="The least p_i that a client may have.")
    by: Literal["uniform", "adversarial"] = Field("uniform", description="How p_i is made from p_min.")
    everyone_before: int = Field(
        0, ge=0, le=_ROUNDS_MAX, description="Rounds at the beginning in which everybody is there."
    )
    on_s: float | None = Field(
        None, ge=_MEAN_S_MIN, le=_MEAN_S_MAX, description="Mean time that a client is there."
    )
    off_s: float | None = Field(
        None, ge=_MEAN_S_MIN, le=_MEAN_S_MAX, description="Mean time that it is away."
    )
    trace: Path | None = Field(None, description="File that says when each client is there.")
    present: tuple[RecordedAvailability, ...] | None = Field(None, description="The same in place of a file.")

    @model_validator(mode="before")
    @classmethod
    def _read_the_trace(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("trace") is None:
            return given
        if given.get("present") is not None:
            raise mistake("trace and present are both given, expected one of them")
        rows = read_presence(Path(str(given["trace"])))
        read = [{"client": client_id, "intervals_s": rows[client_id]} for client_id in sorted(rows)]
        return {**given, "trace": None, "present": read}

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if (self.on_s is None) != (self.off_s is None):
            raise mistake("on_s and off_s go together, expected both or none of them")
        given = (self.p, self.p_by_client, self.p_min, self.on_s, self.present)
        if sum(one is not None for one in given) != 1:
            raise mistake("expected exactly one of p, p_by_client, p_min, on_s with off_s, and trace")
        if self.by != "uniform" and self.p_min is None:
            raise mistake(f"by is {self.by!r}, which goes with p_min only; leave it out or give p_min")
        if self.everyone_before and not self.by_rounds:
            raise mistake(
                f"everyone_before is {self.everyone_before}, which counts rounds, but this dropout goes by time; leave "
                "it out, or say p, p_by_client or p_min"
            )
        if any(one.client >= other.client for one, other in pairwise(self.present or ())):
            raise mistake("present is not sorted, expected each client once, and the lowest first")
        return self

    @model_validator(mode="after")
    def _fits_rounds(self) -> Self:
        """p_i is all that there is to say of a round, and policies are told of it."""
        if not self.by_rounds:
            return self
        if self.direction == "up" or "task" not in (self.messages or ("task",)):
            raise mistake(
                "a dropout by rounds is about tasks, which go down; leave out direction and messages"
            )
        if self.toxicity < 1:
            raise mistake(
                f"toxicity is {self.toxicity:g}, but in a dropout by rounds p alone says how likely a client is "
                "there; leave out toxicity"
            )
        if self.start_s > 0 or self.end_s is not None:
            raise mistake("a dropout by rounds goes by rounds, not by seconds; leave out start_s and end_s")
        return self

    @property
    def by_rounds(self) -> bool:
        """Whether it is decided anew in each round; otherwise in time."""
        return self.on_s is None and self.present is None

    def probability(self, client_id: int, seed: int) -> float:
        """p_i of a dropout by rounds: how likely a client is there. seed: of the run."""
        if self.p is not None:
            return self.p
        if self.p_by_client is not None:
            return self.p_by_client[client_id]
        assert self.p_min is not None and self.by == "uniform", "an adversarial dropout is settled first"
        return float(stream(seed, Stream.AVAILABILITY, client_id).uniform(self.p_min, 1))

    def is_there(self, client_id: int, at_s: float, rngs: ToxicRng) -> bool:
        """Whether a client is there at a time >= start_s of the scenario, by a dropout in time."""
        if self.present is not None:
            recorded = self._recorded(client_id)
            return recorded is not None and recorded.includes(at_s)
        assert self.on_s is not None and self.off_s is not None
        if client_id not in rngs.kept:
            rngs.kept[client_id] = DrawnAvailability(client_id, self.on_s, self.off_s, rngs)
        course: DrawnAvailability = rngs.kept[client_id]
        return course.is_there(at_s - self.start_s)

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        if not self.by_rounds:
            return (flight,) if self.is_there(flight.client_id, flight.sent_s, rngs) else ()
        if flight.type != "task" or flight.version is None or flight.version < self.everyone_before:
            return (flight,)
        chance = stream(rngs.seed, Stream.AVAILABILITY, flight.client_id, flight.version).random()
        if chance < self.probability(flight.client_id, rngs.seed):
            return (flight,)
        return (replace(flight, declined=True),)

    @override
    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (flight,) if self.by_rounds or self.is_there(flight.client_id, flight.due_s, rngs) else ()

    @override
    def settled(self, client_info: ClientInfo, clients: Collection[int] | None = None) -> Self:
        if self.present is not None:
            for client_id in range(client_info.clients) if clients is None else sorted(clients):
                if self._recorded(client_id) is None:
                    raise UserError(
                        f"trace has no row for client {client_id}; add one, or set clients to those it has"
                    )
        if self.p_by_client is not None and len(self.p_by_client) != client_info.clients:
            raise UserError(
                f"p_by_client has {len(self.p_by_client)} numbers, expected one for each of the "
                f"{client_info.clients} clients"
            )
        if self.p_min is None or self.by == "uniform":
            return self
        if client_info.classes < 2:
            raise UserError("by is 'adversarial', expected data of at least 2 classes; leave by out")
        smallest = map(client_info.smallest_class, range(client_info.clients))
        p_by_client = tuple(self.p_min + (1 - self.p_min) * c / (client_info.classes - 1) for c in smallest)
        return self.model_copy(update={"p_by_client": p_by_client, "p_min": None, "by": "uniform"})

    def _recorded(self, client_id: int) -> RecordedAvailability | None:
        assert self.present is not None
        place = bisect_left(self.present, client_id, key=lambda one: one.client)
        found = self.present[place] if place < len(self.present) else None
        return found if found is not None and found.client == client_id else None
