"""When a client is there: as recorded, or drawn in turn with the times that it is away."""

from bisect import bisect_right
from itertools import accumulate
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from unstale.toxics.draws import Draws
from unstale.toxics.trace import Interval, check_presence

_PAIRS = 64  # times there and away that are drawn at once: a chapter


class Presence(BaseModel):
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


class Course:
    """Of one client, drawn: there for Exp(on_s) seconds, away for Exp(off_s), and so on without an end.

    A chapter is made from its own draws when a time falls into it. Only the last one is kept, and where each begins.
    """

    def __init__(self, client_id: int, on_s: float, off_s: float, draws: Draws) -> None:
        self._client_id, self._on_s, self._off_s, self._draws = client_id, on_s, off_s, draws
        self._starts_s = [0.0]
        self._number = -1
        self._changes_s: list[float] = []

    def is_there(self, since_s: float) -> bool:
        """Whether the client is there, so many seconds >= 0 after it began; there it was at 0."""
        while self._starts_s[-1] <= since_s:
            self._open(len(self._starts_s) - 1)
            self._starts_s.append(self._changes_s[-1])
        number = bisect_right(self._starts_s, since_s) - 1
        if number != self._number:
            self._open(number)
        return bisect_right(self._changes_s, since_s) % 2 == 0

    def _open(self, number: int) -> None:
        """changes_s: when it leaves, comes back, ..., comes back. The next chapter begins there."""
        rng = self._draws.of_client(self._client_id, number)
        on_s, off_s = rng.exponential(self._on_s, _PAIRS), rng.exponential(self._off_s, _PAIRS)
        lengths_s = [
            length_s for pair_s in zip(on_s.tolist(), off_s.tolist(), strict=True) for length_s in pair_s
        ]
        self._changes_s = list(accumulate(lengths_s, initial=self._starts_s[number]))[1:]
        self._number = number
