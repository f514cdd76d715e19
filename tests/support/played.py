"""The server's exchange on a simulated network, clock and computing thread: without waiting."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from support.wire import update_of, welcome
from unstale.config.metrics import ACCURACY
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.gateway.transport import Delivery
from unstale.journal.journal import Journal
from unstale.learner.bounds import NormBounds, NormMax
from unstale.learner.learner import RoundResult
from unstale.learner.updates import Round, Row, StagedUpdate, Staging
from unstale.learner.versions import Version
from unstale.metrics.observe import Observation
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits, MaySpeak, allow_all
from unstale.server.commands import Applied, ApplyCommand, Command, ComputeResult, EvaluateCommand, Evaluated
from unstale.server.compute import frames_of
from unstale.server.protocol import ServerProtocol
from unstale.server.state import ProtocolSettings, RunState, TransferBounds
from unstale.server.stats import ServerStats
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale.training.measured import Measured
from unstale_client.partial_files import PartialFiles
from unstale_proto import codec
from unstale_proto.messages import Ack, EncodingPlan, Heartbeat, Hello, Message, Task, Welcome

M = TypeVar("M", bound=Message)


def version_of(number: int) -> Version:
    """A version, encoded in its model of two parameters."""
    return Version(model_d=torch.full((2,), float(number)), buffers_b=torch.empty(0))


class PlayedWire:
    """Stores the messages to each route until they are read. wrapped: number of wrapped models. gone, full: routes that
    do not accept messages."""

    def __init__(self) -> None:
        self.sent: dict[bytes, list[tuple[Message, list[bytes]]]] = defaultdict(list)
        self.wrapped = 0
        self.gone: set[bytes] = set()
        self.full: set[bytes] = set()

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[Any]:
        self.wrapped += 1
        return [bytes(frame) for frame in frames]

    def send(self, route: bytes, header: bytes, frames: Sequence[Any] = ()) -> Delivery:
        if route in self.gone:
            return Delivery.GONE
        if route in self.full:
            return Delivery.FULL
        self.sent[route].append((codec.decode(header), list(frames)))
        return Delivery.SENT


class WatchedStaging(Staging):
    """row_written: the newest row. kept: rows by handle that are in no round yet."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.row_written: Tensor
        self.kept: dict[int, Tensor] = {}

    @override
    def row(self) -> tuple[int, Row]:
        handle, row = super().row()
        self.row_written = row.vector_D
        return handle, row

    @override
    def keep(self, handle: int, update: StagedUpdate) -> None:
        super().keep(handle, update)
        self.kept[handle] = self.row_written

    @override
    def take(self, handles: Sequence[int]) -> Round:
        for handle in handles:
            del self.kept[handle]
        return super().take(handles)


class PlayedServer:
    """An exchange whose clients all train a model of two parameters, which is [v, v] in version v.

    client_limits, may_speak, norm_max, admission, journal, transfers, partial_files, task_timeout_s: as for
    `ServerProtocol`. encoding: its preference; models are sent as float32 only. changes: settings of the coordinator.
    """

    def __init__(
        self,
        clients: int = 1,
        rounds: int = 5,
        *,
        trigger: TriggerSettings | None = None,
        selector: SelectorSettings | None = None,
        transfers: TransferBounds | None = None,
        partial_files: PartialFiles | None = None,
        encoding: EncodingPlan | None = None,
        client_limits: ClientLimits | None = None,
        may_speak: MaySpeak = allow_all,
        norm_max: NormMax = None,
        admission: Admission | None = None,
        journal: Journal | None = None,
        stays: bool = False,
        task_timeout_s: float | None = None,
        signature: str = "0" * 64,
        **changes: Any,
    ) -> None:
        self.now_s = 0.0
        self.wire = PlayedWire()
        self.commands: list[Command] = []
        self.observed: list[Observation] = []
        settings = CoordinatorSettings(
            clients=clients,
            rounds=rounds,
            trigger=trigger or TriggerSettings(name="async"),
            selector=selector or SelectorSettings(),
            seed=0,
            lease_s=10.0,
            evaluate_every=rounds,
            retry_s=5.0,
            **{"min_clients": None, **changes},
        )
        self.coordinator = Coordinator(settings)
        rows = settings.unaggregated_max + 1
        # As in `config.build.staging`.
        rows_per_block = 1 if settings.once_a_cycle else settings.round_size_max
        self.staging = WatchedStaging(2, rows_per_block, blocks_max=rows // rows_per_block + 2)
        self.protocol = ServerProtocol(
            ProtocolSettings(
                linger_s=3.0,
                transfers=transfers or TransferBounds(),
                stays=stays,
                task_timeout_s=task_timeout_s,
                client_limits=client_limits or ClientLimits(),
                may_speak=may_speak,
            ),
            RunState(
                coordinator=self.coordinator,
                staging=self.staging,
                admission=admission or Admission(NormBounds(norm_max, clients=clients)),
                welcome=welcome(clients=clients).model_copy(update={"encoding": encoding, "signature": signature}),
                learning_rate=0.5,
                frames={0: frames_of(version_of(0))},
                sent=version_of(0),
                dimension=2,
                journal=journal,
                partial_files=partial_files or PartialFiles(),
            ),
            self.wire,
            clock=lambda: self.now_s,
            compute=self.commands.append,
            stats=ServerStats(
                rounds=rounds,
                main=ACCURACY,
                record=self.observed.extend,
                on_progress=lambda _: None,
                evaluate_clients_every=None,
            ),
        )

    def compute(self) -> None:
        """Execute every command; eta_l of version v is 1 / (v + 1)."""
        while self.commands:
            result = self.carry_out(self.commands.pop(0))
            if result is not None:
                self.protocol.on_result(result)
                self.protocol.flush()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.protocol.flush()

    def client(self, client_id: int, route: bytes = b"") -> "PlayedClient":
        """A scripted client with a connection of its own."""
        return PlayedClient(self, client_id, route or b"%d" % client_id)

    def carry_out(self, command: Command) -> ComputeResult | None:
        """The result of the computing thread; None without one."""
        if isinstance(command, EvaluateCommand):
            evaluation = Measured(metrics={"accuracy": 0.5, "loss": 1.0}, num_examples=1)
            return Evaluated(version=command.version, evaluation=evaluation, evaluate_s=0.0)
        if not isinstance(command, ApplyCommand):
            return None
        version = self.coordinator.version + 1
        count = len(command.updates)
        command.round.release()
        made = RoundResult(
            version=version,
            sent=version_of(version),
            learning_rate=1 / (version + 1),
            weights_K=(1 / count,) * count if count else (),
            staleness=tuple(update.staleness for update in command.updates),
            rate_factor=1.0,
            overflowed=False,
        )
        return Applied(result=made, frames=frames_of(made.sent), aggregate_s=0.0, device_memory_bytes=0)


class PlayedClient:
    """The messages of a client over one connection."""

    def __init__(self, server: PlayedServer, client_id: int, route: bytes) -> None:
        self.server = server
        self.client_id = client_id
        self.route = route
        self.beats = 0

    def say(self, message: Message, frames: Sequence[memoryview] = ()) -> None:
        self.server.protocol.on_message(self.route, codec.encode(message), frames)
        self.server.protocol.flush()

    def hears(self) -> list[Message]:
        """All messages to it since the last call."""
        return [message for message, _ in self.server.wire.sent.pop(self.route, [])]

    def hear(self, kind: type[M]) -> M:
        """The only message to it, which has this type."""
        (message,) = self.hears()
        assert isinstance(message, kind), message
        return message

    def join(self, holding: tuple[int, ...] = (), session: str = "a" * 32) -> None:
        """Send a hello; the answers stay unread."""
        self.say(Hello(client_id=self.client_id, session=session, holding=holding))

    def task(self) -> Task:
        """Join, and receive the task after the welcome."""
        self.join()
        greeting, task = self.hears()
        assert isinstance(greeting, Welcome) and isinstance(task, Task)
        return task

    def beat(self, newest_task: int | None = None, heard: int | None = None) -> list[Message]:
        """Send the next heartbeat. Returns the answers."""
        self.say(Heartbeat(number=self.beats, version=0, newest_task=newest_task, heard=heard))
        self.beats += 1
        return self.hears()

    def say_update(self, task: Task) -> None:
        """Send an update of ones."""
        self.say(update_of(task), [memoryview(np.ones(2, dtype="<f4").tobytes())])

    def answer(self, task: Task) -> Ack:
        """Send an update of ones, and receive the verdict."""
        self.say_update(task)
        return self.hear(Ack)
