"""Agrees with each client on the encodings of its payloads. Pure."""

from collections.abc import Sequence

from unstale.learner.row_checks import Layout
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.limits import FLOAT_BYTES
from unstale_proto.messages import Hello, Welcome


class EncodingNegotiation:
    """Protocol thread only. welcome: for any client, with the encodings that the configuration wants. dimension:
    d. frames: a model as float32.

    models: their encoding, for clients that can take it. updates: those that an update may have. Float32 is always one
    of them, so that a client may go on with less than it could do before, or the other way round. update_bytes_max: of
    an update's payload. layout: of its row.
    """

    def __init__(self, welcome: Welcome, dimension: int, frames: Sequence[memoryview]) -> None:
        self._welcome = welcome
        behind = sum(map(len, frames)) // FLOAT_BYTES - dimension
        extra = dimension if welcome.extra else 0
        self.layout = Layout(dimension, behind - extra, extra)
        self.models = encodings.of_models(welcome.encoding, dimension, behind)
        mine = encodings.of_updates(welcome.encoding, dimension, behind)
        plain = encodings.of_updates(None, dimension, behind)
        self.updates: tuple[Encoding, ...] = (plain,) if mine.name == FLOAT32 else (plain, mine)
        self.update_bytes_max = max(encoding.payload_bytes for encoding in self.updates)
        self._take_models: set[int] = set()  # clients

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
