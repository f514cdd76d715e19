"""Arguments of the server protocol: the parts of its run, and its settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unstale.coordinator.machine import Coordinator
from unstale.journal.journal import Journal
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits, MaySpeak, allow_all
from unstale.server.slot_scheduler import OwnerOf, key_or_client
from unstale_client.partial_files import PartialFiles
from unstale_proto.limits import CHUNK_BYTES
from unstale_proto.messages import Welcome
from unstale_proto.transfer import WINDOW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The parts of a run, at the version that it has reached."""

    coordinator: Coordinator
    staging: Staging
    admission: Admission
    welcome: Welcome
    """For any client; the server protocol fills in id and version, and the encoding that the client supports."""
    learning_rate: float  # eta_l of tasks
    sent: Version  # the newest version that tasks may carry
    frames: Mapping[int, Sequence[memoryview]]  # float32 payload of each version that tasks may carry
    dimension: int  # d, parameters of the model
    encoded: Mapping[int, Sequence[memoryview]] = field(default_factory=dict)
    """The same in the encoding of the run; empty where that is float32."""
    journal: Journal | None = None  # None for a run that stores nothing
    partial_files: PartialFiles = field(default_factory=PartialFiles)
    """Files of updates in chunks until they are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBounds:
    """Bounds on payloads that go in chunks. Servers use the defaults; tests use small ones."""

    chunk_bytes: int = CHUNK_BYTES  # larger payloads go in chunks
    window_bytes: int = WINDOW_BYTES  # of one transfer, under way at once
    places: int = 2  # updates that may come at once; each takes files of the size of a model
    parts_max: int = 8  # updates kept in part without a place
    versions: int = 2  # models that may be sent at once; each takes memory of the size of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """Times, bounds and rights of connections. Times are in seconds."""

    linger_s: float  # time that clients have to say goodbye
    return_s: float = 0.0  # time that clients need to come back to a server that was restarted
    task_timeout_s: float | None = None  # time that clients have to answer a task; None for any time
    transfers: TransferBounds = field(default_factory=TransferBounds)
    """Which payloads go in chunks, and bounds on these."""
    prefetches: bool = False  # the compensator works on stale updates before their round closes
    stays: bool = False  # after the end of the run, answer clients until `stop`
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    may_speak: MaySpeak = allow_all
    """Whether the owner of a key may speak for a client; key None is a link in plain text."""
    owner_of: OwnerOf = key_or_client  # with whom a client shares places for large payloads
