"""For how long a server may say nothing. Pure."""

from math import inf

from unstale.errors import UserError

FIRST_WORD_S = 3.0  # a server that has not answered by then is worth a word to the person who waits
SILENCE_S = 20.0  # so is one that says nothing for so long later, though heartbeats are answered


class ServerTimeout:
    """server: its address. patience_s: of silence, after which it is given up; None waits for ever. at_s: now.

    Within the lease that the server gives its clients nobody is given up: there may be nothing to say.
    """

    def __init__(self, server: str, patience_s: float | None, at_s: float) -> None:
        self._server = server
        self._patience_s = inf if patience_s is None else patience_s
        self._lease_s: float | None = None
        self._since_s = at_s
        self._mentioned = False

    def heard(self, at_s: float) -> None:
        """The server said something."""
        self._since_s, self._mentioned = at_s, False

    def welcomed(self, lease_s: float) -> None:
        """The server is one of ours. lease_s: that it gives its clients."""
        self._lease_s = lease_s

    @property
    def due_s(self) -> float:
        """When `word` has something to say, if nothing is heard before; infinity is never."""
        return self._since_s + (self._limit_s if self._mentioned else min(self._limit_s, self._word_s))

    def word(self, at_s: float) -> str | None:
        """What the person who waits should hear now. Raises UserError at the end of patience."""
        silence_s = at_s - self._since_s
        if silence_s >= self._limit_s:
            raise UserError(self._last_word)
        if silence_s < self._word_s or self._mentioned:
            return None
        self._mentioned = True
        if self._lease_s is None:
            return f"no server answers at {self._server} yet; trying on {self._for_how_long}"
        return (
            f"nothing heard from the server at {self._server} for {self._word_s:.0f} s; "
            f"waiting for it to come back {self._for_how_long}"
        )

    @property
    def _word_s(self) -> float:
        return FIRST_WORD_S if self._lease_s is None else max(SILENCE_S, self._lease_s)

    @property
    def _limit_s(self) -> float:
        return max(self._patience_s, self._lease_s or 0.0)

    @property
    def _for_how_long(self) -> str:
        """How long the wait may be, and the key that bounds it."""
        if self._limit_s == inf:
            return (
                "for ever, because client.patience_s is null; with --client.patience-s 60 a client gives up "
                "after 60 s without a word"
            )
        return f"until {self._limit_s:g} s are over (client.patience_s)"

    @property
    def _last_word(self) -> str:
        if self._lease_s is None:
            return (
                f"no server answered at {self._server} for {self._limit_s:g} s; "
                "start it, or check client.server"
            )
        return (
            f"nothing was heard from the server at {self._server} for {self._limit_s:g} s; "
            "start this client again when it is back, or set client.patience_s higher"
        )
