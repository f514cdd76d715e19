"""The messages, as frozen types that are valid because they exist. PROTOCOL.md says what each is for.

Header fields of every message are `protocol` and `type`; unknown fields are ignored, so that a later minor
change can add one. Payload frames follow the header of `task`, `update` and `chunk` only.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from unstale_proto import limits
from unstale_proto.errors import Reason

Count = Annotated[int, Field(ge=0, le=limits.INTEGER_MAX)]
Positive = Annotated[int, Field(ge=1, le=limits.INTEGER_MAX)]
ClientId = Annotated[int, Field(ge=0, lt=limits.CLIENTS_MAX)]
Seconds = Annotated[float, Field(gt=0, le=limits.SECONDS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=limits.NAME_MAX)]
Text = Annotated[str, Field(max_length=limits.TEXT_MAX)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
LearningRate = Annotated[float, Field(gt=0, le=limits.LEARNING_RATE_MAX)]
Loss = Annotated[float, Field(ge=-limits.LOSS_MAX, le=limits.LOSS_MAX)]
PayloadBytes = Annotated[
    int, Field(ge=limits.FLOAT_BYTES, le=limits.PAYLOAD_BYTES_MAX, multiple_of=limits.FLOAT_BYTES)
]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Offset = Annotated[int, Field(ge=0, le=limits.PAYLOAD_BYTES_MAX)]
Clients = Annotated[int, Field(ge=1, le=limits.CLIENTS_MAX)]
VariantRate = Annotated[float, Field(ge=limits.VARIANT_RATE_MIN, le=limits.VARIANT_RATE_MAX)]
Block = Annotated[int, Field(ge=limits.BLOCK_MIN, le=limits.BLOCK_MAX)]
ModelEncoding = Literal["float32", "bfloat16", "float16", "int8"]
UpdateEncoding = Literal["float32", "bfloat16", "float16", "int8", "top-k"]
# On the wire a reason is its text; strict validation would take only a member of the enumeration.
WireReason = Annotated[Reason, Field(strict=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Message(_Strict):
    """A message. `type` is its name on the wire."""

    type: ClassVar[str]


class TensorSpec(_Strict):
    """One parameter of the model, in vector order. dtype: as the sender trains it, and as payloads are."""

    name: Name
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=limits.DIMENSION_MAX)], ...], Field(max_length=limits.RANK_MAX)
    ]
    dtype: Literal["float32"]


class ModelPlan(_Strict):
    """What a model's name leaves open. A field that is not there takes the default of the model."""

    norm: Name | None = None
    projection_head: Positive | None = None


class VariantPlan(_Strict):
    """Another data set, whose examples take the place of a client's, `rate` of them at each version."""

    name: Name
    rate: VariantRate


class DataPlan(_Strict):
    """What a data set's name leaves open."""

    normalise: Name | None = None
    column: Name | None = None
    labels: Digest | None = None
    variant: VariantPlan | None = None


class PartPlan(_Strict):
    """A part of the run by its name, such as the partition, with the settings that it takes, by their keys.

    The receiver checks the settings: their bounds are those of its own configuration. It ignores a key that it does
    not know.
    """

    model_config = ConfigDict(extra="allow")

    always: ClassVar[Mapping[str, Any]]
    """Settings that are always sent, also for a part that does not take them, and their values where missing."""

    name: Name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.__pydantic_extra__ or {}

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return values | {key: value for key, value in cls.always.items() if key not in values}


class PartitionPlan(PartPlan):
    """How the training set is shared out, for clients that hold a share of a public data set."""

    always = MappingProxyType({"min_examples": 1})


class TrainingPlan(PartPlan):
    """How clients train. steps: optimiser steps a task, unless epochs is given."""

    always = MappingProxyType({"momentum": 0.0, "weight_decay": 0.0})


class EncodingPlan(_Strict):
    """How payloads to and from a client are encoded. block: B of int8, there exactly where that is. keep: k of top-k,
    likewise."""

    updates: UpdateEncoding
    models: ModelEncoding
    block: Block | None = None
    keep: Positive | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.block is not None) != ("int8" in (self.updates, self.models)):
            raise PydanticCustomError("block", "block should be given exactly when something is 'int8'")
        if (self.keep is not None) != (self.updates == "top-k"):
            raise PydanticCustomError("keep", "keep should be given exactly when updates is 'top-k'")
        return self


class OwnEvaluation(_Strict):
    """How good the task's model is on the client's own test examples. accuracy: correct / examples. loss: nats."""

    accuracy: Annotated[float, Field(ge=0, le=1)]
    loss: Loss
    examples: Positive


class ProcessStart(_Strict):
    """Which start of a client's processes this is. home: drawn once for the directory in which they store what must
    outlive them. number: counts starts there."""

    home: Token
    number: Positive


class Hello(Message):
    """Client to server: here I am.

    session: 16 random bytes in hex, drawn once a process; the same after a reconnect.
    holding: ids of the tasks that the client has received and not yet had acknowledged. encodings: names of those that
    it can take and make; none for float32 alone. start: of the process; none where nothing outlives it.
    """

    type: ClassVar[str] = "hello"
    client_id: ClientId
    session: Token
    holding: Annotated[tuple[Positive, ...], Field(max_length=limits.HOLDING_MAX)] = ()
    encodings: Annotated[tuple[Name, ...], Field(max_length=limits.ENCODINGS_MAX)] | None = None
    start: ProcessStart | None = None


class Welcome(Message):
    """Server to client: you are in, and this is the run.

    buffers: float buffers of the model that travel behind the parameters in every payload. extra: whether a second
    vector, as long as the parameters, travels behind those. encoding: of payloads to and from this client; none for
    float32.
    """

    type: ClassVar[str] = "welcome"
    client_id: ClientId
    run_id: Token
    clients: Clients
    seed: Count
    version: Count
    model: Name
    data: Name
    partition: PartitionPlan
    training: TrainingPlan
    tensors: Annotated[tuple[TensorSpec, ...], Field(min_length=1, max_length=limits.TENSORS_MAX)]
    signature: Digest
    heartbeat_s: Seconds
    lease_s: Seconds
    model_plan: ModelPlan | None = None
    data_plan: DataPlan | None = None
    buffers: Annotated[tuple[TensorSpec, ...], Field(max_length=limits.TENSORS_MAX)] | None = None
    extra: bool | None = None
    encoding: EncodingPlan | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.client_id >= self.clients:
            raise PydanticCustomError("client_id", "client_id should be less than clients")
        if self.lease_s <= self.heartbeat_s:
            raise PydanticCustomError("lease_s", "lease_s should be more than heartbeat_s")
        keep = None if self.encoding is None else self.encoding.keep
        if keep is not None and keep > sum(math.prod(tensor.shape) for tensor in self.tensors):
            raise PydanticCustomError("keep", "encoding.keep should be at most the number of parameters")
        return self


class Task(Message):
    """Server to client: train from this model. The payload is the model: see PROTOCOL.md 9.

    number: how many tasks this client was given before; with the client id it keys the task's random draws.
    learning_rate: eta_l, per step. evaluate: whether to measure the model on the client's own test examples too.
    run_id: of its run, whose welcome may have been lost. checksum: of the payload, which comes in chunks. encoding: of
    the payload; none for float32.
    """

    type: ClassVar[str] = "task"
    task_id: Positive
    number: Count
    version: Count
    learning_rate: LearningRate
    signature: Digest
    payload_bytes: PayloadBytes
    evaluate: bool | None = None
    run_id: Token | None = None
    checksum: Checksum | None = None
    encoding: ModelEncoding | None = None


class Update(Message):
    """Client to server: what a task made. The payload is the vector, in the units that `kind` says.

    num_examples: n_i, what the client holds. learning_rate: eta_l used; the server divides a delta by it. loss: mean
    mini-batch loss, nats. batch_examples: m_i, of the mini-batch of a gradient; not there: num_examples.
    checksum: of the payload, which comes in chunks. encoding: of the payload; none for float32.
    """

    type: ClassVar[str] = "update"
    task_id: Positive
    base_version: Count
    kind: Literal["gradient", "delta"]
    num_examples: Positive
    steps: Positive
    loss: Loss
    learning_rate: LearningRate
    signature: Digest
    payload_bytes: PayloadBytes
    batch_examples: Positive | None = None
    evaluation: OwnEvaluation | None = None
    checksum: Checksum | None = None
    encoding: UpdateEncoding | None = None


class Chunk(Message):
    """Both ways: a piece of a payload that was announced, its one payload frame. offset: of its first byte.

    From a client it belongs to the update of the task, from the server to its model; and so does a `credit` the other
    way round.
    """

    type: ClassVar[str] = "chunk"
    task_id: Positive
    offset: Offset


class Credit(Message):
    """Both ways: what the receiver of a payload has of it, and how much may be sent.

    have: bytes from the first on, without a gap. until: bytes before this one may be sent; equal to `have`: wait.
    again: send from `have` on, whatever was sent before.
    """

    type: ClassVar[str] = "credit"
    task_id: Positive
    have: Offset
    until: Offset
    again: bool | None = None

    @model_validator(mode="after")
    def _is_not_behind(self) -> Self:
        if self.until < self.have:
            raise PydanticCustomError("until", "until should not be less than have")
        return self


class Ack(Message):
    """Server to client: the verdict on an update.

    A repeat gets `duplicate` and the first verdict in the other fields. reason: set exactly when
    first_outcome is `rejected`.
    """

    type: ClassVar[str] = "ack"
    task_id: Positive
    outcome: Literal["accepted", "duplicate", "rejected"]
    first_outcome: Literal["accepted", "rejected"]
    reason: WireReason | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.outcome != "duplicate" and self.outcome != self.first_outcome:
            raise PydanticCustomError(
                "outcome", "first_outcome should be equal to outcome unless that is 'duplicate'"
            )
        if (self.reason is None) != (self.first_outcome == "accepted"):
            raise PydanticCustomError(
                "reason", "reason should be given exactly when first_outcome is 'rejected'"
            )
        return self


class Heartbeat(Message):
    """Both ways: I am alive. The server answers each one of a client's with the same number.

    number: counts a client's heartbeats of this session. Messages of one connection keep their order, so an
    answer to a heartbeat sent after an update, and no acknowledgement before it, says that the update or its
    ack was lost: send it again. version: the newest that the sender knows.

    Only a client says the other two, by which the server finds that a task was lost. newest_task: id of the newest task
    received in this run, 0 for none, or when that was given back. heard: number of its newest heartbeat whose answer
    came.
    """

    type: ClassVar[str] = "heartbeat"
    number: Count
    version: Count
    newest_task: Count | None = None
    heard: Count | None = None


class Bye(Message):
    """Client to server: I am leaving. reason: for people."""

    type: ClassVar[str] = "bye"
    reason: Text = ""


class Stop(Message):
    """Server to client: work no more. `superseded`: another process took over this client id. failed: with `shutdown`,
    the run was given up and nobody comes back to it by itself. message: for people."""

    type: ClassVar[str] = "stop"
    reason: Literal["finished", "shutdown", "superseded"]
    version: Count
    failed: bool | None = None
    message: Text | None = None


class Error(Message):
    """Either way: a message was refused, or (client to server) a task could not be done.

    task_id: the task concerned, when there is one. A client that names one gives that task back, for the
    reason `non-finite` when its training diverged, `unavailable` when it cannot take part in this round.
    """

    type: ClassVar[str] = "error"
    reason: WireReason
    message: Text = ""
    task_id: Positive | None = None
