"""Bounds on the norms of updates, set by the clients themselves: a multiple of a median over clients.

Every client has one vote, however often it reports, so fewer than half of the clients cannot move the median beyond
what the others report. A client's vote is the envelope of its accepted norms: the largest, where an older one counts
`DECAY` times less for each accepted update since. Envelopes are steady where norms are not: late in training most
updates are short, and one with an example that the model still gets wrong is as long as the first ones were. A norm
that was refused is the client's vote until its next accepted update. So a bound that most clients exceed at the same
time gives way: the model has changed, and one damaged update changes nothing for long.
docs/decisions/0031-the-clients-bound-each-others-norms.md has the measurements behind the numbers.

Pure: what follows from the same reports in the same order is the same to the bit.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal, NamedTuple

from unstale.learner.row_checks import Norms

MULTIPLE = 20.0
"""Of the median that an update may have. Honest runs stayed under 11."""
BUFFERS_MULTIPLE = MULTIPLE**2
"""The same of buffers, which hold variances: squares. Honest ones stayed under 89."""
DECAY = 0.99
"""Of an envelope, per accepted update of its client; half is left after 69."""
VOTERS_MIN = 3
"""Clients that a median needs."""
VOTERS_ENOUGH = 100
"""Or half of the run's clients, where that is less: as long as fewer have reported, the norm of the initial model
bounds updates as well, so that a few clients that hurry to be the first do not set the bound."""
VOTERS_MAX = 1000
"""Clients that vote at a time: those that reported last."""
FIRST_STEP = 10.0
"""Times the norm of the initial model (or 1, where that is more) that one of the first updates may move it. Honest
ones moved it by up to 2.3 times."""
FIRST_BUFFERS = FIRST_STEP**2
"""The same of buffers."""

JUMP_MIN = 5.0
"""Times the median before it that an accepted update had to have to count as a jump."""

NormMax = Literal["adaptive"] | float | None


class Jump(NamedTuple):
    """The accepted update that was longest for its time. ratio: its norm over the median that was before it."""

    client_id: int
    base_version: int
    norm: float
    ratio: float


class MedianBound:
    """The bound on the norm of one of an update's vectors.

    clients: of the run. multiple: of the median that a norm may have.
    """

    def __init__(self, clients: int, multiple: float = MULTIPLE) -> None:
        self._multiple = multiple
        # Of two clients none is a minority.
        self._enough = max(VOTERS_MIN, min(clients // 2, VOTERS_ENOUGH)) if clients >= VOTERS_MIN else 0
        self._envelopes: dict[int, float] = {}  # of those that vote, who reported last is last
        self._refused: dict[int, float] = {}
        self._votes: list[float] = []  # sorted

    @property
    def median(self) -> float | None:
        """Over the clients that vote: the upper one of two. None without any."""
        return self._votes[len(self._votes) // 2] if self._votes else None

    def bound(self, first: float) -> float:
        """The norm that may not be exceeded now. first: as long as few clients have reported, no more than this."""
        return self._bound_of(self._votes, first)

    def allows(self, client_id: int, norm: float, first: float) -> bool:
        """Whether an update of a client may be so long: with the vote that its refusal would be, too, so that a client
        that follows most others is not held back. first: as in `bound`."""
        if norm <= self.bound(first):
            return True
        votes = self._votes.copy()
        if client_id in self._envelopes:
            del votes[bisect_left(votes, self._vote_of(client_id))]
        insort(votes, max(norm, self._envelopes.get(client_id, 0.0)))
        return norm <= self._bound_of(votes, first)

    def accepted(self, client_id: int, norm: float) -> None:
        """A client's update was accepted."""
        before = self._envelopes.get(client_id, 0.0)
        self._vote(client_id, max(norm, DECAY * before), None)

    def refused(self, client_id: int, norm: float) -> None:
        """A client's update was refused for its norms."""
        self._vote(client_id, self._envelopes.get(client_id, 0.0), norm)

    def state_dict(self) -> dict[str, Any]:
        """For `load_state_dict`."""
        return {"envelopes": list(self._envelopes.items()), "refused": dict(self._refused)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Be as the one was whose state this is."""
        self._envelopes = dict(state["envelopes"])
        self._refused = dict(state["refused"])
        self._votes = sorted(self._vote_of(client_id) for client_id in self._envelopes)

    def _bound_of(self, votes: Sequence[float], first: float) -> float:
        if not self._enough:
            first = inf
        if not votes or len(votes) < min(VOTERS_MIN, self._enough):
            return first
        by_median = self._multiple * votes[len(votes) // 2] or first  # a median of 0 is no scale
        return by_median if len(votes) >= self._enough else min(by_median, first)

    def _vote_of(self, client_id: int) -> float:
        return max(self._envelopes[client_id], self._refused.get(client_id, 0.0))

    def _vote(self, client_id: int, envelope: float, refused: float | None) -> None:
        if client_id in self._envelopes:
            self._forget(client_id)
        elif len(self._envelopes) == VOTERS_MAX:
            self._forget(next(iter(self._envelopes)))
        self._envelopes[client_id] = envelope
        if refused is not None:
            self._refused[client_id] = refused
        insort(self._votes, self._vote_of(client_id))

    def _forget(self, client_id: int) -> None:
        del self._votes[bisect_left(self._votes, self._vote_of(client_id))]
        del self._envelopes[client_id]
        self._refused.pop(client_id, None)


class NormBounds:
    """The bounds on all vectors of an update.

    norm_max: bound on the update itself: adaptive, a number, or None for none. Buffers and the extra vector have
    adaptive bounds, unless it is None; that of the extra vector, a gradient of one step less another, is that of
    updates. clients: of the run. model_norm, buffers_norm: L2 norms of the initial model and of its buffers.

    jump: the accepted update that was longest for its time; None before there was a median.
    """

    def __init__(
        self, norm_max: NormMax, *, clients: int, model_norm: float = 0.0, buffers_norm: float = 0.0
    ) -> None:
        self.norm_max = norm_max
        self.jump: Jump | None = None
        self._first_step = FIRST_STEP * max(1.0, model_norm)
        self._first_buffers = FIRST_BUFFERS * max(1.0, buffers_norm)
        self._update = MedianBound(clients)
        self._buffers = MedianBound(clients, BUFFERS_MULTIPLE)

    @property
    def median(self) -> float | None:
        """Of the norms of updates, over clients; None before there is one."""
        return self._update.median

    def bounds(self, rate: float) -> Norms:
        """What an update may have now: infinite for any norm. rate: eta_l of its task."""
        first = self._first_step / rate
        if self.norm_max is None:
            return Norms(inf, inf, inf)
        adaptive = self._update.bound(first)
        update = adaptive if self.norm_max == "adaptive" else float(self.norm_max)
        return Norms(update, self._buffers.bound(self._first_buffers), adaptive)

    def allow(self, client_id: int, norms: Norms, rate: float) -> bool:
        """Whether an update of a client may have these norms. rate: as in `bounds`."""
        if self.norm_max is None:
            return True
        first = self._first_step / rate
        if self.norm_max == "adaptive":
            update_fits = self._update.allows(client_id, norms.update, first)
        else:
            update_fits = norms.update <= self.norm_max
        return (
            update_fits
            and (norms.buffers is None or self._buffers.allows(client_id, norms.buffers, self._first_buffers))
            and (norms.extra is None or norms.extra <= self._update.bound(first))
        )

    def judged(self, client_id: int, base_version: int, norms: Norms, *, accepted: bool) -> None:
        """An update was accepted, or refused for its norms."""
        if accepted:
            self._note_jump(client_id, base_version, norms.update)
        for bound, norm in ((self._update, norms.update), (self._buffers, norms.buffers)):
            if norm is not None:
                (bound.accepted if accepted else bound.refused)(client_id, norm)

    def replay(self, client_id: int, base_version: int, norms: Norms | None, reason: str | None) -> None:
        """As `judged`, of any update. norms: None where they were not measured. reason: None when it was accepted."""
        if norms is not None and reason in (None, "norm-too-large"):
            self.judged(client_id, base_version, norms, accepted=reason is None)

    def state_dict(self) -> dict[str, Any]:
        """For `load_state_dict`."""
        return {
            "update": self._update.state_dict(),
            "buffers": self._buffers.state_dict(),
            "jump": None if self.jump is None else list(self.jump),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Be as the one was whose state this is; `norm_max` is not part of it."""
        self._update.load_state_dict(state["update"])
        self._buffers.load_state_dict(state["buffers"])
        self.jump = None if state["jump"] is None else Jump(*state["jump"])

    @property
    def advice(self) -> str | None:
        """What to do when most updates are too long: a part of a sentence. None where the bound gives way by itself."""
        if self.norm_max is None or self.norm_max == "adaptive":
            return None
        return (
            f"the median of their norms is {self.median or 0:.3g} and the bound server.norm_max is "
            f"{self.norm_max:.3g}; restart the server with a larger bound or with adaptive"
        )

    @property
    def cause(self) -> str | None:
        """What may have made the model leave its course, and what to do: a part of a sentence. None without a jump."""
        jump = self.jump
        if jump is None or jump.ratio < JUMP_MIN:
            return None
        return (
            f"the update of client {jump.client_id} from version {jump.base_version} had norm {jump.norm:.3g}, "
            f"{jump.ratio:.3g} times the median then: go back with `unstale rollback RUN --to {jump.base_version} "
            f"--without {jump.client_id}`, or lower training.learning_rate"
        )

    def _note_jump(self, client_id: int, base_version: int, norm: float) -> None:
        median = self._update.median
        if not median:
            return
        ratio = norm / median
        if self.jump is None or ratio > self.jump.ratio:
            self.jump = Jump(client_id, base_version, norm, ratio)
