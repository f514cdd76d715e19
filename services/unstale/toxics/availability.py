"""The availability of a client over time, recorded or drawn."""

from bisect import bisect_right
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unstale.toxics.rng import ToxicRng
from unstale.toxics.trace import Interval, check_availability

_CHANGES = 32  # of a chapter, on average: few would cost a generator each, many would fill the memory


class RecordedAvailability(BaseModel):
    """The recorded availability of one client. intervals_s: [start_s, end_s), sorted."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int = Field(ge=0)
    intervals_s: tuple[Interval, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        check_availability(self.client, self.intervals_s, "intervals_s")
        return self

    def includes(self, at_s: float) -> bool:
        """Whether the client is available."""
        index = bisect_right(self.intervals_s, at_s, key=lambda interval: interval[0])
        return index > 0 and at_s < self.intervals_s[index - 1][1]


class DrawnAvailability:
    """Alternating times of one client: on for Exp(on_s), off for Exp(off_s) seconds.

    An equal process: changes arrive as a Poisson process of rate 1 / on_s + 1 / off_s, and each makes the client
    available with probability on_s / (on_s + off_s), whatever its state was. The time is divided into chapters of equal
    length, whose changes depend on their own draws alone, so that a late time costs no more than an early one.
    """

    def __init__(self, client_id: int, on_s: float, off_s: float, rngs: ToxicRng) -> None:
        self._client_id, self._rngs = client_id, rngs
        self._share = on_s / (on_s + off_s)
        self._chapter_s = _CHANGES * off_s * self._share
        self._number = -1  # of the cached chapter
        self._times_s: list[float] = []
        self._outcomes: list[bool] = []
        self._initial = True

    def is_there(self, since_s: float) -> bool:
        """Whether the client is available since_s >= 0 after its start (available at 0)."""
        number = int(since_s // self._chapter_s)
        if number != self._number:
            self._times_s, self._outcomes = self._chapter(number)
            self._initial = self._state_after(number - 1)
            self._number = number
        passed = bisect_right(self._times_s, since_s - number * self._chapter_s)
        return self._outcomes[passed - 1] if passed else self._initial

    def _state_after(self, number: int) -> bool:
        """Whether the client is available at the end of a chapter."""
        for earlier in range(number, -1, -1):
            _, outcomes = self._chapter(earlier)
            if outcomes:  # one chapter in e^32 has none
                return outcomes[-1]
        return True

    def _chapter(self, number: int) -> tuple[list[float], list[bool]]:
        """Sorted times of the changes from its start, and the state after each."""
        rng = self._rngs.of_client(self._client_id, number)
        count = int(rng.poisson(_CHANGES))
        times_s = sorted((self._chapter_s * rng.random(count)).tolist())
        return times_s, (rng.random(count) < self._share).tolist()
