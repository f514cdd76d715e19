"""What hellos settle: the connection of each client, and the encodings of its payloads. No I/O and no clock."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unstale.learner.row_checks import Layout
from unstale.server.slot_scheduler import Owner
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.limits import FLOAT_BYTES
from unstale_proto.messages import Hello, ProcessStart, Welcome

SUPERSEDED_KEPT = 4  # processes that spoke for one client before; a hello of theirs may still be under way


@dataclass(slots=True)
class Sessions:
    """Connections by client, and clients by connection: the newest hello of a client wins.

    The server's socket gives each connection a routing id, which acts as a client after its hello. A peer may choose
    its own routing id, but none that starts with a zero byte as those of the socket do: it cannot take one over.
    """

    clients: int
    owners: dict[int, Owner] = field(default_factory=dict)
    """With whom each client that said hello shares slots for large payloads."""
    client_of: Callable[[bytes], int | None] = field(init=False, repr=False)
    """Returns the client of a connection, None before its hello. It is `dict.get` itself, the most frequent call."""
    _route_of: dict[int, bytes] = field(default_factory=dict)
    _client_of: dict[bytes, int] = field(default_factory=dict)
    _cut_off: set[int] = field(default_factory=set)
    _last_token_of: dict[int, str] = field(default_factory=dict)  # also of clients that are forgotten
    _superseded: dict[int, deque[str]] = field(default_factory=dict)
    _start_of: dict[int, ProcessStart] = field(default_factory=dict)  # also of clients that are forgotten

    def __post_init__(self) -> None:
        self.client_of = self._client_of.get

    def is_superseded(self, hello: Hello, *, active: bool) -> bool:
        """Whether another process owns the client rather than the sender of this hello.

        Of processes with one home, the one with the greater start number does. An inactive client may return with a
        smaller number, because its home may have been restored from a copy. Without a home, an earlier owner does not.
        """
        last = self._start_of.get(hello.client_id)
        if last is not None and hello.start is not None and hello.start.home == last.home:
            return active and hello.start.number < last.number
        return hello.session in self._superseded.get(hello.client_id, ())

    def admit(self, hello: Hello, route: bytes) -> bytes | None:
        """Let `route` speak for the client. The route of another process that did before and must receive a stop."""
        client_id, token = hello.client_id, hello.session
        assert 0 <= client_id < self.clients
        if hello.start is None:
            self._start_of.pop(client_id, None)
        else:
            self._start_of[client_id] = hello.start
        spoke_for = self._client_of.get(route)
        if spoke_for is not None and spoke_for != client_id:
            self._forget(spoke_for)
        before = self._route_of.get(client_id)
        last = self._last_token_of.get(client_id, token)
        if last != token:
            self._superseded.setdefault(client_id, deque(maxlen=SUPERSEDED_KEPT)).append(last)
        self._last_token_of[client_id] = token
        if before is not None:
            del self._client_of[before]
        self._route_of[client_id] = route
        self._client_of[route] = client_id
        self._cut_off.discard(client_id)
        return None if before == route or last == token else before

    def is_said_again(self, client_id: int, token: str, route: bytes) -> bool:
        """Whether this hello comes from the process and connection that speak for the client already."""
        return self.route_of(client_id) == route and self._last_token_of[client_id] == token

    def owner_of(self, client_id: int) -> Owner:
        return self.owners.get(client_id, client_id)

    def route_of(self, client_id: int) -> bytes | None:
        """Connection of a client, or None when it cannot be reached."""
        return None if client_id in self._cut_off else self._route_of.get(client_id)

    def routes(self) -> list[bytes]:
        """Every connection that speaks for a client and can be reached."""
        return [route for route, client_id in self._client_of.items() if client_id not in self._cut_off]

    def awaits_anyone(self, is_active: Callable[[int], bool]) -> bool:
        """Whether a client has not left. One that is cut off connects again soon while its lease lasts."""
        return any(client_id not in self._cut_off or is_active(client_id) for client_id in self._client_of.values())

    def cut_off(self, client_id: int) -> None:
        """The client's connection is gone, but messages that arrived over it before, such as a bye, are still valid."""
        if client_id in self._route_of:
            self._cut_off.add(client_id)

    def forget(self, client_id: int) -> None:
        """The client can no longer be reached: its next message must be a hello."""
        if client_id in self._route_of:
            self._forget(client_id)

    def _forget(self, client_id: int) -> None:
        del self._client_of[self._route_of.pop(client_id)]
        self._cut_off.discard(client_id)


class EncodingNegotiation:
    """Protocol thread only. Float32 is always one of the encodings: a client may return with other abilities."""

    def __init__(self, welcome: Welcome, dimension: int, frames: Sequence[memoryview]) -> None:
        """welcome: for any client. dimension: d. frames: a model as float32."""
        self._welcome = welcome
        behind = sum(map(len, frames)) // FLOAT_BYTES - dimension
        extra = dimension if welcome.extra else 0
        self.layout = Layout(dimension, behind - extra, extra)
        self.models = encodings.of_models(welcome.encoding, dimension, behind)  # for clients that can take it
        mine = encodings.of_updates(welcome.encoding, dimension, behind)
        plain = encodings.of_updates(None, dimension, behind)
        self.updates: tuple[Encoding, ...] = (plain,) if mine.name == FLOAT32 else (plain, mine)
        self.update_bytes_max = max(encoding.payload_bytes for encoding in self.updates)
        self._take_models: set[int] = set()  # ids of clients

    def welcome(self, hello: Hello, version: int) -> Welcome:
        """The welcome that answers a hello."""
        plan = encodings.agreed(self._welcome.encoding, hello.encodings)
        changes = {"client_id": hello.client_id, "version": version, "encoding": plan}
        return self._welcome.model_copy(update=changes)

    def admit(self, hello: Hello) -> None:
        """A client was welcomed: from now on its models are encoded as agreed."""
        plan = encodings.agreed(self._welcome.encoding, hello.encodings)
        if plan is not None and plan.models != FLOAT32:
            self._take_models.add(hello.client_id)
        else:
            self._take_models.discard(hello.client_id)

    def takes_models(self, client_id: int) -> bool:
        """Whether a client receives models in the encoding of the run."""
        return client_id in self._take_models
