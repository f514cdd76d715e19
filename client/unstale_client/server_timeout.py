"""The time that a server may be silent. Pure."""

from dataclasses import dataclass
from math import inf

from unstale_client.errors import UserError
from unstale_client.setting_names import CONFIGURATION, SettingNames

FIRST_WORD_S = 3.0  # silence before the first warning about a server that has never answered
SILENCE_S = 20.0  # the same for one that has, although it answers heartbeats


@dataclass(slots=True)
class ServerTimeout:
    """Warns about a silent server, and gives up after `patience_s` seconds of silence; None waits for ever.

    A client never gives up within the lease that the server grants: there may be nothing to send.
    """

    server: str
    patience_s: float | None
    at_s: float  # time of the latest message
    lease_s: float | None = None  # of the latest welcome
    has_warned: bool = False  # since the latest message
    names: SettingNames = CONFIGURATION

    def heard(self, at_s: float) -> str | None:
        """A message arrived. Returns a line for the log if a server that has answered before was silent too long."""
        silence_s, was_away = at_s - self.at_s, self.has_warned and self.lease_s is not None
        self.at_s, self.has_warned = at_s, False
        return f"the server at {self.server} is back after {silence_s:.0f} s" if was_away else None

    @property
    def due_s(self) -> float:
        """Time of the next warning or of the end, if no message arrives before; infinity for never."""
        return self.at_s + (self._limit_s if self.has_warned else min(self._limit_s, self._warn_after_s))

    def warning(self, at_s: float) -> str | None:
        """The warning that is due now, once per silence. Raises UserError when the limit is reached."""
        silence_s = at_s - self.at_s
        if silence_s >= self._limit_s:
            raise UserError(self._last_message)
        if silence_s < self._warn_after_s or self.has_warned:
            return None
        self.has_warned = True
        if self.lease_s is None:
            return f"no server answers at {self.server} yet; retrying {self._for_how_long}"
        return (
            f"no message from the server at {self.server} for {self._warn_after_s:.0f} s; "
            f"waiting for it to come back {self._for_how_long}"
        )

    @property
    def _warn_after_s(self) -> float:
        return FIRST_WORD_S if self.lease_s is None else max(SILENCE_S, self.lease_s)

    @property
    def _limit_s(self) -> float:
        return inf if self.patience_s is None else max(self.patience_s, self.lease_s or 0.0)

    @property
    def _for_how_long(self) -> str:
        if self._limit_s == inf:
            return (
                f"for ever, because {self.names.no_patience}; with {self.names.some_patience} a client gives up "
                "after 60 s without a message"
            )
        return f"until {self._limit_s:g} s have passed ({self.names.patience_s})"

    @property
    def _last_message(self) -> str:
        if self.lease_s is None:
            return (
                f"no server answered at {self.server} for {self._limit_s:g} s; start it, or check {self.names.server}"
            )
        return (
            f"no message from the server at {self.server} for {self._limit_s:g} s; "
            f"start this client again when the server is back, or set {self.names.patience_s} higher"
        )
