"""Adaptive bounds on the norms of updates: a multiple of the median over clients.

Each client has one vote, so a minority cannot move the median beyond the norms of the others. A vote is the decayed
maximum of a client's accepted norms (the factor is `DECAY` per accepted update): late in training most norms are small,
but a misclassified example gives a norm as large as at the start. A rejected norm is the client's vote until its next
accepted update, so that the bound rises when the norms of most clients rise at the same time.

Deterministic: the same reports in the same order give the same bits.
The measurements behind the constants are in docs/decisions/0031-the-clients-bound-each-others-norms.md.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal, NamedTuple

from unstale.learner.row_checks import Norms

MULTIPLE = 20.0  # largest accepted norm of an update, in medians; honest runs stay under 11
BUFFERS_MULTIPLE = MULTIPLE**2  # the same for buffers, which hold variances (squares); honest runs stay under 89
DECAY = 0.99  # factor of a vote per accepted update of its client; half is left after 69 updates
VOTERS_MIN = 3  # clients that a median needs
VOTERS_ENOUGH = 100
"""Votes, or half of the run's clients if that is less, below which the norm of the initial model is a bound as well, so
that a few fast clients cannot set the bound."""
VOTERS_MAX = 1000  # the clients that reported last have the votes
FIRST_STEP = 10.0
"""Largest step of one of the first updates, in norms of the initial model (at least 1). Honest runs stay under 2.3."""
FIRST_BUFFERS = FIRST_STEP**2
"""Largest step of the buffers of one of the first updates, in norms of the initial buffers (at least 1)."""
JUMP_MIN = 5.0  # smallest norm of a jump, in medians before the update

NormMax = Literal["adaptive"] | float | None


class Jump(NamedTuple):
    """The accepted update with the largest norm relative to the median before it."""

    client_id: int
    base_version: int
    norm: float
    ratio: float  # norm / median


class MedianBound:
    """The bound on the norm of one vector of an update, in a run of N clients."""

    def __init__(self, clients: int, multiple: float = MULTIPLE) -> None:
        self._multiple = multiple
        # Of two clients none is a minority.
        self._enough = max(VOTERS_MIN, min(clients // 2, VOTERS_ENOUGH)) if clients >= VOTERS_MIN else 0
        self._envelopes: dict[int, float] = {}  # decayed maximum by client, in order of the last report
        self._refused: dict[int, float] = {}
        self._votes: list[float] = []  # sorted

    @property
    def median(self) -> float | None:
        """The median of the votes, of two the larger; None without votes."""
        return self._votes[len(self._votes) // 2] if self._votes else None

    def bound(self, first: float) -> float:
        """The largest norm that is accepted now. first: bound while few clients have reported."""
        return self._bound_of(self._votes, first)

    def allows(self, client_id: int, norm: float, first: float) -> bool:
        """Whether this norm is accepted, now or with the vote that its rejection would cast.

        The second case accepts a client whose norm rises after those of most others.
        """
        if norm <= self.bound(first):
            return True
        votes = self._votes.copy()
        if client_id in self._envelopes:
            del votes[bisect_left(votes, self._vote_of(client_id))]
        insort(votes, max(norm, self._envelopes.get(client_id, 0.0)))
        return norm <= self._bound_of(votes, first)

    def record(self, client_id: int, norm: float, *, accepted: bool) -> None:
        """Record the norm of an update that was accepted, or rejected for its norm."""
        envelope = self._envelopes.get(client_id, 0.0)
        if client_id in self._envelopes:
            self._forget(client_id)
        elif len(self._envelopes) == VOTERS_MAX:
            self._forget(next(iter(self._envelopes)))
        self._envelopes[client_id] = max(norm, DECAY * envelope) if accepted else envelope
        if not accepted:
            self._refused[client_id] = norm
        insort(self._votes, self._vote_of(client_id))

    def state_dict(self) -> dict[str, Any]:
        return {"envelopes": list(self._envelopes.items()), "refused": dict(self._refused)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._envelopes = dict(state["envelopes"])
        self._refused = dict(state["refused"])
        self._votes = sorted(self._vote_of(client_id) for client_id in self._envelopes)

    def _bound_of(self, votes: Sequence[float], first: float) -> float:
        if not self._enough:
            first = inf
        if not votes or len(votes) < min(VOTERS_MIN, self._enough):
            return first
        by_median = self._multiple * votes[len(votes) // 2] or first  # a median of 0 gives no bound
        return by_median if len(votes) >= self._enough else min(by_median, first)

    def _vote_of(self, client_id: int) -> float:
        return max(self._envelopes[client_id], self._refused.get(client_id, 0.0))

    def _forget(self, client_id: int) -> None:
        del self._votes[bisect_left(self._votes, self._vote_of(client_id))]
        del self._envelopes[client_id]
        self._refused.pop(client_id, None)


class NormBounds:
    """The bounds on all vectors of an update."""

    def __init__(self, norm_max: NormMax, *, clients: int, model_norm: float = 0.0, buffers_norm: float = 0.0) -> None:
        """norm_max: bound on the update; None for no bound on any vector. model_norm, buffers_norm: initial L2 norms.

        The bounds on buffers and on the extra vector are adaptive in any case; the extra vector, a difference of
        gradients, has the bound of updates.
        """
        self.norm_max = norm_max
        self.jump: Jump | None = None  # None before the first median
        self._first_step = FIRST_STEP * max(1.0, model_norm)
        self._first_buffers = FIRST_BUFFERS * max(1.0, buffers_norm)
        self._update = MedianBound(clients)
        self._buffers = MedianBound(clients, BUFFERS_MULTIPLE)

    def bounds(self, rate: float) -> Norms:
        """The largest accepted norms; infinity for no bound. rate: eta_l of the task."""
        first = self._first_step / rate
        if self.norm_max is None:
            return Norms(inf, inf, inf)
        adaptive = self._update.bound(first)
        update = adaptive if self.norm_max == "adaptive" else float(self.norm_max)
        return Norms(update, self._buffers.bound(self._first_buffers), adaptive)

    def allow(self, client_id: int, norms: Norms, rate: float) -> bool:
        """Whether an update with these norms is accepted. rate: eta_l of the task."""
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
        """Record the norms of an update that was accepted, or rejected for its norms."""
        median = self._update.median
        if accepted and median and (self.jump is None or norms.update / median > self.jump.ratio):
            self.jump = Jump(client_id, base_version, norms.update, norms.update / median)
        for bound, norm in ((self._update, norms.update), (self._buffers, norms.buffers)):
            if norm is not None:
                bound.record(client_id, norm, accepted=accepted)

    def replay(self, client_id: int, base_version: int, norms: Norms | None, reason: str | None) -> None:
        """Record a stored update. norms: None if not measured. reason: of its rejection; None if it was accepted."""
        if norms is not None and reason in (None, "norm-too-large"):
            self.judged(client_id, base_version, norms, accepted=reason is None)

    def state_dict(self) -> dict[str, Any]:
        return {
            "update": self._update.state_dict(),
            "buffers": self._buffers.state_dict(),
            "jump": None if self.jump is None else list(self.jump),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the votes and the jump; `norm_max` stays."""
        self._update.load_state_dict(state["update"])
        self._buffers.load_state_dict(state["buffers"])
        self.jump = None if state["jump"] is None else Jump(*state["jump"])

    @property
    def advice(self) -> str | None:
        """Advice for a fixed bound that most updates exceed, as part of a sentence; None for other bounds."""
        if self.norm_max is None or self.norm_max == "adaptive":
            return None
        return (
            f"the median of their norms is {self._update.median or 0:.3g} and the bound server.norm_max is "
            f"{self.norm_max:.3g}; restart the server with a larger bound or with adaptive"
        )

    @property
    def cause(self) -> str | None:
        """The jump as a possible cause of divergence, with advice, as part of a sentence; None without a jump."""
        jump = self.jump
        if jump is None or jump.ratio < JUMP_MIN:
            return None
        return (
            f"the update of client {jump.client_id} from version {jump.base_version} had norm {jump.norm:.3g}, "
            f"{jump.ratio:.3g} times the median then: go back with `unstale rollback RUN --to {jump.base_version} "
            f"--without {jump.client_id}`, or lower training.learning_rate"
        )
