"""When a client is there: as recorded, or drawn in turn with the times that it is away."""

from bisect import bisect_right
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unstale.toxics.rng import ToxicRng
from unstale.toxics.trace import Interval, check_presence

_CHANCES = 32  # of a chapter, on average: a generator is not made for a few, and many would fill the memory


class RecordedAvailability(BaseModel):
    """Of one client, recorded. intervals_s: [start_s, end_s), in order."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int = Field(ge=0)
    intervals_s: tuple[Interval, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        check_presence(self.client, self.intervals_s, "intervals_s")
        return self

    def includes(self, at_s: float) -> bool:
        """Whether the client is there."""
        place = bisect_right(self.intervals_s, at_s, key=lambda interval: interval[0])
        return place > 0 and at_s < self.intervals_s[place - 1][1]


class DrawnAvailability:
    """Of one client, drawn: there for Exp(on_s) seconds, away for Exp(off_s), and so on without an end.

    That is the same as chances to change that come as a Poisson process of rate 1 / on_s + 1 / off_s, each of which
    leaves the client there with probability on_s / (on_s + off_s), whatever was before. What one part of the time
    (a chapter, all of one length) holds then depends on its own draws alone, so that no time is far away.
    """

    def __init__(self, client_id: int, on_s: float, off_s: float, rngs: ToxicRng) -> None:
        self._client_id, self._rngs = client_id, rngs
        self._share = on_s / (on_s + off_s)
        self._chapter_s = _CHANCES * off_s * self._share
        self._number = -1  # of the chapter that is kept
        self._times_s: list[float] = []
        self._outcomes: list[bool] = []
        self._before = True

    def is_there(self, since_s: float) -> bool:
        """Whether the client is there, so many seconds >= 0 after it began; there it was at 0."""
        number = int(since_s // self._chapter_s)
        if number != self._number:
            self._times_s, self._outcomes = self._chapter(number)
            self._before = self._is_there_after(number - 1)
            self._number = number
        passed = bisect_right(self._times_s, since_s - number * self._chapter_s)
        return self._outcomes[passed - 1] if passed else self._before

    def _is_there_after(self, number: int) -> bool:
        """Whether it is there at the end of a chapter. Before the first it was."""
        for earlier in range(number, -1, -1):
            _, outcomes = self._chapter(earlier)
            if outcomes:  # one chapter in e^32 has none
                return outcomes[-1]
        return True

    def _chapter(self, number: int) -> tuple[list[float], list[bool]]:
        """Its chances: seconds into it, ascending; and whether each leaves the client there."""
        rng = self._rngs.of_client(self._client_id, number)
        count = int(rng.poisson(_CHANCES))
        times_s = sorted((self._chapter_s * rng.random(count)).tolist())
        return times_s, (rng.random(count) < self._share).tolist()
