"""Rate limits, and quarantine of clients that send only invalid messages. Pure.

Each message takes a token from the bucket of its client. A message of no client, and every hello, takes it from the
bucket of its connection: a hello costs the server most, a welcome and a record.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf

from unstale.config.settings import ServerSettings
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.coordinator.settings import CoordinatorSettings
from unstale.learner.bounds import NormBounds
from unstale_proto.errors import Reason, RemoteContractError

STRANGER_MESSAGES_PER_S = 10  # a client that joins says one hello, and another every few seconds
ANSWER_S = 1.0  # least time between two errors for too many messages
ROUTES_KEPT = 16_384  # connections that are remembered: 5 MB; whose is forgotten has a full bucket again
CLIENTS_MIN = 2  # refused clients that blame the model; a single one proves nothing about it

REASONS = frozenset({Reason.ZERO_UPDATE, Reason.NON_FINITE, Reason.NORM_TOO_LARGE})
"""Reasons that the model can cause."""

UNREADABLE = frozenset({Reason.MALFORMED_HEADER, Reason.HEADER_TOO_LARGE, Reason.UNKNOWN_TYPE, Reason.WRONG_PROTOCOL})
"""Reasons that damage in transit can cause, if the next message can be read."""

BLAMED = UNREADABLE.union(
    REASONS,
    (Reason.WRONG_SIGNATURE, Reason.WRONG_SIZE, Reason.MALFORMED_PAYLOAD, Reason.UNKNOWN_TASK, Reason.UNKNOWN_VERSION),
    (Reason.UNKNOWN_CLIENT, Reason.UNEXPECTED_TYPE, Reason.NOT_THE_OWNER),
)
"""Reasons that only a defective or hostile client causes. The network causes the others."""

MaySpeak = Callable[[str | None, int], bool]
"""Whether the owner of a public key may speak for a client."""


def allow_all(_key: str | None, _client_id: int) -> bool:
    """A `MaySpeak` for links in plain text."""
    return True


def not_owner_error(client_id: int) -> RemoteContractError:
    """The error of a connection that may not speak for a client."""
    return RemoteContractError(Reason.NOT_THE_OWNER, f"the key of this connection does not own client {client_id}")


def check_participant(client_id: int, settings: CoordinatorSettings) -> None:
    """Raise RemoteContractError unless the run has a client of this id, and was not rolled back without it."""
    why = None
    if client_id >= settings.clients:
        why = f"client id {client_id} is not below {settings.clients}, the number of clients in this run"
    elif client_id in settings.excluded:
        why = (
            f"client {client_id} is excluded: the run was rolled back without its updates; the operator admits it "
            f"again with `unstale rollback --readmit {client_id}`"
        )
    if why is not None:
        raise RemoteContractError(Reason.UNKNOWN_CLIENT, why)


@dataclass(slots=True, eq=False)
class ModelHealth:
    """Detects refused updates whose cause is the global model, not a client. One thread.

    After a large change of the model, or with too low a bound on norms, the updates of most clients are zero, not
    finite, or too large at the same time. Then no client is quarantined.
    """

    _accepted: set[int] = field(default_factory=set)
    _refused: dict[int, Reason] = field(default_factory=dict)
    _was_unhealthy: bool = False

    @property
    def is_unhealthy(self) -> bool:
        """Whether more last updates were refused for `REASONS` than accepted, of at least `CLIENTS_MIN` clients."""
        return len(self._refused) >= CLIENTS_MIN and len(self._refused) > len(self._accepted)

    def on_accepted(self, client_id: int) -> None:
        self._refused.pop(client_id, None)
        self._accepted.add(client_id)

    def on_refused(self, client_id: int, reason: Reason) -> None:
        """Record an update that was refused for one of `REASONS`."""
        self._accepted.discard(client_id)
        self._refused[client_id] = reason

    def forget(self, client_id: int) -> None:
        self._accepted.discard(client_id)
        self._refused.pop(client_id, None)

    def take_warning(self, bounds: NormBounds) -> str | None:
        """Return a warning whenever `is_unhealthy` becomes true. bounds: Supply the advice or the cause."""
        if not self._refused:
            self._was_unhealthy = False
            return None
        was_unhealthy, self._was_unhealthy = self._was_unhealthy, self.is_unhealthy
        if was_unhealthy or not self._was_unhealthy:
            return None
        by_reason = Counter(self._refused.values())
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(by_reason.items()))
        sentence = (
            f"the last updates of {len(self._refused)} of {len(self._refused) + len(self._accepted)} clients were "
            f"refused ({counted}); no client is kept out for that"
        )
        explanation = bounds.advice if by_reason[Reason.NORM_TOO_LARGE] else bounds.cause
        return sentence if explanation is None else f"{sentence}: {explanation}"


@dataclass(slots=True)
class _Bucket:
    """Token bucket of a connection or a client."""

    left: float  # messages allowed at once, as of at_s
    at_s: float
    told_s: float = -inf  # time of the last error for too many messages

    def take(self, per_s_max: float, at_s: float) -> bool:
        """Take a token, if there is one. The bucket holds the tokens of two seconds at this rate."""
        self.left = min(2 * per_s_max, self.left + (at_s - self.at_s) * per_s_max)
        self.at_s = at_s
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class _Client(_Bucket):
    """State of a client, and the bucket of its messages."""

    wrong: int = 0  # blamed refusals since its last accepted update
    unreadable: int = 0  # messages in a row that could not be read
    free_s: float = -inf  # end of its quarantine


@dataclass(slots=True, kw_only=True, eq=False)
class ClientLimits:
    """State of the clients that sent a message, and of the last ROUTES_KEPT connections. None is unbounded."""

    client_messages_per_s_max: float | None = None
    stranger_messages_per_s_max: float | None = None  # of a connection that speaks for no client, and hellos of any
    quarantine_after: int | None = None  # refusals in a row that the client is to blame for
    quarantine_s: float = 60.0
    suspects: dict[int, _Client] = field(init=False, default_factory=dict)
    """Clients that were refused since their last accepted update: only these may be due for a quarantine."""
    model_health: ModelHealth = field(init=False, default_factory=ModelHealth)
    _clients: dict[int, _Client] = field(init=False, default_factory=dict)
    _routes: dict[bytes, _Bucket] = field(init=False, default_factory=dict)  # whose bucket was used last is last

    def check_rate(self, route: bytes, client_id: int | None, at_s: float) -> None:
        """Count a message of a connection. Raises RemoteContractError if it is one too many, to be dropped unread."""
        per_s_max = self.client_messages_per_s_max
        if client_id is None:
            self._charge_route(route, at_s)
        elif per_s_max is not None:
            client = self._clients.get(client_id) or self._client(client_id, at_s)
            if not client.take(per_s_max, at_s):
                why = f"more than {per_s_max:g} messages a second: those over are dropped"
                raise RemoteContractError(Reason.RATE_LIMITED, why)

    def on_hello(self, route: bytes, speaks_for: int | None, client_id: int, at_s: float) -> None:
        """Count a hello for `client_id`. Raises RemoteContractError if it is too many, or the client in quarantine."""
        if speaks_for is not None:  # else it is paid
            self._charge_route(route, at_s)
        client = self._clients.get(client_id)
        if client is not None and client.free_s > at_s:
            raise RemoteContractError(Reason.QUARANTINED, _kept_out(client_id, client.free_s - at_s))

    def on_valid_message(self, client_id: int | None) -> None:
        """A message of a client could be read."""
        client = None if client_id is None else self.suspects.get(client_id)
        if client is not None:
            client.unreadable = 0

    def refund(self, client_id: int, at_s: float) -> None:
        """Return the token of a message that the server requested."""
        if self.client_messages_per_s_max is not None:
            self._client(client_id, at_s).left += 1

    def on_verdict(self, verdict: Acknowledge, at_s: float) -> None:
        """Count the verdict on an update; a duplicate is counted already."""
        if verdict.outcome is Outcome.ACCEPTED:
            self.model_health.on_accepted(verdict.client_id)
            client = self.suspects.get(verdict.client_id)
            if client is not None:
                client.wrong = 0
                if not client.unreadable:
                    del self.suspects[verdict.client_id]
        elif verdict.outcome is Outcome.REJECTED:
            assert verdict.reason is not None
            reason = Reason(verdict.reason)
            if reason in REASONS:
                self.model_health.on_refused(verdict.client_id, reason)
            self.on_refused(verdict.client_id, reason, at_s)

    def on_refused(self, client_id: int | None, reason: Reason, at_s: float) -> None:
        """A message of a connection that speaks for this client was refused."""
        if client_id is None or self.quarantine_after is None or reason not in BLAMED:
            return
        client = self.suspects[client_id] = self._client(client_id, at_s)
        if reason in REASONS and self.model_health.is_unhealthy:
            client.wrong = 0  # earlier refusals were no fault of the client either
        elif reason in UNREADABLE:
            client.unreadable += 1
        else:
            client.wrong += 1

    def is_quarantine_due(self, client_id: int) -> bool:
        """Whether a client was refused so often in a row that it must be quarantined."""
        client = self.suspects.get(client_id)
        if client is None or self.quarantine_after is None:
            return False
        return max(client.wrong, client.unreadable) >= self.quarantine_after

    def quarantine(self, client_id: int, at_s: float) -> RemoteContractError:
        """Begin the quarantine of a client; the error to send."""
        self.suspects.pop(client_id, None)
        self.model_health.forget(client_id)
        client = self._client(client_id, at_s)
        client.wrong = client.unreadable = 0
        client.free_s = at_s + self.quarantine_s
        return RemoteContractError(Reason.QUARANTINED, _kept_out(client_id, self.quarantine_s))

    def may_answer(self, route: bytes, reason: Reason, at_s: float) -> bool:
        """Whether a refusal is answered: each one, but those for too many messages once a second."""
        if reason is not Reason.RATE_LIMITED:
            return True
        known = self._route(route, at_s)
        if at_s < known.told_s + ANSWER_S:
            return False
        known.told_s = at_s
        return True

    def _charge_route(self, route: bytes, at_s: float) -> None:
        per_s_max = self.stranger_messages_per_s_max
        if per_s_max is not None and not self._route(route, at_s).take(per_s_max, at_s):
            why = f"more than {per_s_max:g} messages a second without a hello, or hellos: those over are dropped"
            raise RemoteContractError(Reason.RATE_LIMITED, why)

    def _client(self, client_id: int, at_s: float) -> _Client:
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(2 * (self.client_messages_per_s_max or 0.0), at_s)
        return client

    def _route(self, route: bytes, at_s: float) -> _Bucket:
        known = self._routes.pop(route, None) or _Bucket(2 * (self.stranger_messages_per_s_max or 0.0), at_s)
        self._routes[route] = known
        if len(self._routes) > ROUTES_KEPT:
            del self._routes[next(iter(self._routes))]
        return known


def configured(settings: ServerSettings) -> ClientLimits:
    """The limits of a run."""
    return ClientLimits(
        client_messages_per_s_max=settings.client_messages_per_s_max,
        stranger_messages_per_s_max=STRANGER_MESSAGES_PER_S,
        quarantine_after=settings.quarantine_after,
        quarantine_s=settings.quarantine_s,
    )


def _kept_out(client_id: int, left_s: float) -> str:
    return (
        f"client {client_id} was refused too often in a row and is in quarantine for {ceil(left_s)} s; "
        "correct its updates; it may send a hello then"
    )
