"""Clients that are unavailable: in random rounds, at random times, or at recorded times."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.values import Section
from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.in_flight import InFlightMessage
from unstale.toxics.rng import ToxicRng
from unstale.toxics.toxic import Toxic
from unstale.toxics.trace import Interval, check_availability, read_availability, with_content

Probability = Annotated[float, Field(ge=0, le=1)]
Mean = Annotated[float, Field(ge=1e-3, le=1e9)]

_CHANGES_PER_SLICE = 32  # mean: fewer need more generators, which take 20 us each; more need more memory


class RecordedAvailability(Section):
    """The recorded availability of one client. intervals_s: [start_s, end_s), sorted."""

    client: int = Field(ge=0)
    intervals_s: tuple[Interval, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        check_availability(self.client, self.intervals_s, "intervals_s")
        return self

    def includes(self, at_s: float) -> bool:
        """Whether the client is available at a time of the scenario."""
        index = bisect_right(self.intervals_s, at_s, key=lambda interval: interval[0])
        return index > 0 and at_s < self.intervals_s[index - 1][1]


@dataclass(slots=True)
class DrawnAvailability:
    """Alternating times of one client: on for Exp(on_s), off for Exp(off_s) seconds.

    Drawn as an equivalent process: changes arrive as a Poisson process of rate 1 / on_s + 1 / off_s, and each makes the
    client available with probability share = on_s / (on_s + off_s), independently of its state. Time is divided into
    slices of equal length, each with a generator of its own, so that a late time costs no more than an early one.
    """

    client_id: int
    rngs: ToxicRng
    share: float
    slice_s: float
    _cached: int = -1  # index of the slice that the next three fields describe
    _times_s: list[float] = field(default_factory=list)  # of its changes, from its start
    _outcomes: list[bool] = field(default_factory=list)  # state after each change
    _initial: bool = True  # state at its start

    def is_available(self, since_s: float) -> bool:
        """Whether the client is available `since_s` >= 0 seconds after the start, at which it is available."""
        index = int(since_s // self.slice_s)
        if index != self._cached:
            self._times_s, self._outcomes = self._slice(index)
            self._initial = self._state_after(index - 1)
            self._cached = index
        passed = bisect_right(self._times_s, since_s - index * self.slice_s)
        return self._outcomes[passed - 1] if passed else self._initial

    def _state_after(self, index: int) -> bool:
        """Whether the client is available at the end of a slice."""
        for earlier in range(index, -1, -1):
            _, outcomes = self._slice(earlier)
            if outcomes:  # one slice in e^32 has none
                return outcomes[-1]
        return True

    def _slice(self, index: int) -> tuple[list[float], list[bool]]:
        """Sorted times of a slice's changes, from its start, and the state after each."""
        rng = self.rngs.of_client(self.client_id, index)
        count = int(rng.poisson(_CHANGES_PER_SLICE))
        times_s = sorted((self.slice_s * rng.random(count)).tolist())
        return times_s, (rng.random(count) < self.share).tolist()


class Dropout(Toxic):
    """Clients are not always available. Exactly one of these settings decides when:

    p, p_by_client or p_min: in each round, at random; a client that is not available declines its task. With p_min each
    client has its own p_i: drawn once from U(p_min, 1), or with `by: adversarial` from its smallest class label c_i:

        p_i = p_min + (1 - p_min) * c_i / (classes - 1)

    everyone_before: all clients are available for versions 0 to everyone_before - 1. Policies receive the later p_i.

    on_s and off_s: alternating times with exponential distributions of these means; available at start_s. trace:
    absolute path of a CSV `client,start_s,end_s` of times when each client is available; read once into `present`.
    Messages are lost, in both directions, if the client is unavailable when they enter the link or would leave it.

    The draw of a round depends on seed, client and round (the version of the task) only, not on the toxic's name: of
    two dropouts by rounds, the one with the lower p_i decides.
    Source: FedAR (Jiang et al., 2024), docs/methods/heterogeneity.md#availability
    """

    type = "dropout"
    destroys = True

    p: Probability | None = Field(None, description="Probability that a client is available in a round.")
    p_by_client: tuple[Probability, ...] | None = Field(None, description="The probability of each client.")
    p_min: Probability | None = Field(None, description="Lower bound of the probabilities p_i.")
    by: Literal["uniform", "adversarial"] = Field("uniform", description="How p_i is made from p_min.")
    everyone_before: int = Field(0, ge=0, le=10**9, description="First rounds in which all clients are available.")
    on_s: Mean | None = Field(None, description="Mean time that a client is available.")
    off_s: Mean | None = Field(None, description="Mean time that a client is not available.")
    trace: Path | None = Field(None, description="File of times when each client is available.")
    present: tuple[RecordedAvailability, ...] | None = Field(None, description="The content of a trace.")

    @model_validator(mode="before")
    @classmethod
    def _read_trace(cls, data: Any) -> Any:
        return with_content(data, "trace", "present", read_availability)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if (self.on_s is None) != (self.off_s is None):
            raise ValueError("on_s and off_s go together, expected both or none of them")
        if [self.p, self.p_by_client, self.p_min, self.on_s, self.present].count(None) != 4:
            raise ValueError("expected exactly one of p, p_by_client, p_min, on_s with off_s, and trace")
        if self.by != "uniform" and self.p_min is None:
            raise ValueError(f"by is {self.by!r}, which goes with p_min only; leave it out or give p_min")
        if self.by_rounds:
            self._check_rounds()
        elif self.everyone_before:
            raise ValueError(
                f"everyone_before is {self.everyone_before}, which counts rounds, but this dropout is over time; "
                "leave it out, or give p, p_by_client or p_min"
            )
        if any(former.client >= latter.client for former, latter in pairwise(self.present or ())):
            raise ValueError("present is not sorted, expected each client once, and the lowest first")
        return self

    def _check_rounds(self) -> None:
        """Reject settings besides p_i that would affect a round: policies receive p_i as its probability."""
        if self.direction == "up" or "task" not in (self.messages or ("task",)):
            raise ValueError("a dropout by rounds affects tasks only; leave out direction and messages")
        if self.toxicity < 1:
            raise ValueError(
                f"toxicity is {self.toxicity:g}, but p is the probability of a dropout by rounds; leave out toxicity"
            )
        if self.start_s > 0 or self.end_s is not None:
            raise ValueError("a dropout by rounds has no times in seconds; leave out start_s and end_s")

    @property
    def by_rounds(self) -> bool:
        """Whether availability is drawn for each round, instead of over time."""
        return self.on_s is None and self.present is None

    def probability(self, client_id: int, seed: int) -> float:
        """p_i of a dropout by rounds. seed: of the run."""
        if self.p is not None:
            return self.p
        if self.p_by_client is not None:
            return self.p_by_client[client_id]
        assert self.p_min is not None and self.by == "uniform", "`settled` computes the p_i of an adversarial dropout"
        return float(stream(seed, Stream.AVAILABILITY, client_id).uniform(self.p_min, 1))

    def is_available(self, client_id: int, at_s: float, rngs: ToxicRng) -> bool:
        """Whether a client is available at a time >= start_s. Only for a dropout over time."""
        if self.present is not None:
            recorded = self._recorded(client_id)
            return recorded is not None and recorded.includes(at_s)
        if client_id not in rngs.cache:
            assert self.on_s is not None and self.off_s is not None
            share = self.on_s / (self.on_s + self.off_s)
            mean_s = self.off_s * share  # between changes: 1 / (1 / on_s + 1 / off_s)
            rngs.cache[client_id] = DrawnAvailability(client_id, rngs, share, _CHANGES_PER_SLICE * mean_s)
        drawn: DrawnAvailability = rngs.cache[client_id]
        return drawn.is_available(at_s - self.start_s)

    @override
    def apply(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        if not self.by_rounds:
            return (flight,) if self.is_available(flight.client_id, flight.sent_s, rngs) else ()
        if flight.type != "task" or flight.version is None or flight.version < self.everyone_before:
            return (flight,)
        chance = stream(rngs.seed, Stream.AVAILABILITY, flight.client_id, flight.version).random()
        if chance < self.probability(flight.client_id, rngs.seed):
            return (flight,)
        return (replace(flight, declined=True),)

    @override
    def apply_at_the_end(self, flight: InFlightMessage, rngs: ToxicRng) -> tuple[InFlightMessage, ...]:
        return (flight,) if self.by_rounds or self.is_available(flight.client_id, flight.due_s, rngs) else ()

    @override
    def settled(self, client_info: ClientInfo, clients: Collection[int] | None = None) -> Self:
        if self.present is not None:
            for client_id in range(client_info.clients) if clients is None else sorted(clients):
                if self._recorded(client_id) is None:
                    raise UserError(
                        f"trace has no row for client {client_id}; add one, or set clients to those in the trace"
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
        index = bisect_left(self.present, client_id, key=lambda recorded: recorded.client)
        recorded = self.present[index] if index < len(self.present) else None
        return recorded if recorded is not None and recorded.client == client_id else None
