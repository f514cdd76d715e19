"""The messages of the protocol as frozen, validated types; PROTOCOL.md describes them.

Every header also has the fields `protocol` and `type`. Unknown fields are ignored, so that a later version can add
some. Only `task`, `update` and `chunk` have payload frames.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
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
PayloadBytes = Annotated[int, Field(ge=limits.FLOAT_BYTES, le=limits.PAYLOAD_BYTES_MAX, multiple_of=limits.FLOAT_BYTES)]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Offset = Annotated[int, Field(ge=0, le=limits.PAYLOAD_BYTES_MAX)]
Clients = Annotated[int, Field(ge=1, le=limits.CLIENTS_MAX)]
VariantRate = Annotated[float, Field(ge=limits.VARIANT_RATE_MIN, le=limits.VARIANT_RATE_MAX)]
Block = Annotated[int, Field(ge=limits.BLOCK_MIN, le=limits.BLOCK_MAX)]
ModelEncoding = Literal["float32", "bfloat16", "float16", "int8"]
UpdateEncoding = Literal["float32", "bfloat16", "float16", "int8", "top-k"]
# A reason is its text on the wire; strict validation would accept only a member of the enumeration.
WireReason = Annotated[Reason, Field(strict=False)]


class _Map(dict[str, Any]):
    """A map in a message, which is a value: it has a hash, and nothing changes it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


MetricName = Annotated[str, Field(pattern=rf"^[a-z0-9_./-]{{1,{limits.METRIC_NAME_MAX}}}$")]
Metrics = Annotated[dict[MetricName, float], Field(max_length=limits.METRICS_MAX), AfterValidator(_Map)]
SettingName = Annotated[str, Field(pattern=rf"^[A-Za-z0-9_./-]{{1,{limits.METRIC_NAME_MAX}}}$")]


def _checked_setting(value: Any) -> int | float | str:
    if isinstance(value, str) and len(value) <= limits.SETTING_TEXT_MAX:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= limits.INTEGER_MAX:
        return value
    raise PydanticCustomError(
        "setting",
        "should be a finite number, an integer of 64 bits, or a text of at most {characters} characters",
        {"characters": limits.SETTING_TEXT_MAX},
    )


SettingValue = Annotated[Any, AfterValidator(_checked_setting)]
ClientSettings = Annotated[dict[SettingName, SettingValue], Field(max_length=limits.SETTINGS_MAX), AfterValidator(_Map)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Message(_Strict):
    """A message. type: its name on the wire."""

    type: ClassVar[str]


PRIVATE = "private"
"""Name of data and partition in the welcome of a run whose clients train on data of their own."""


class TensorSpec(_Strict):
    """One tensor of the model, in payload order."""

    name: Name
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=limits.DIMENSION_MAX)], ...], Field(max_length=limits.RANK_MAX)
    ]
    dtype: Literal["float32"]


class ModelPlan(_Strict):
    """Settings of the model. A field that is not set takes the default of the model."""

    norm: Name | None = None
    projection_head: Positive | None = None


class VariantPlan(_Strict):
    """Another data set, whose examples take the place of a client's, `rate` of them at each version."""

    name: Name
    rate: VariantRate


class DataPlan(_Strict):
    """Settings of the data set."""

    normalise: Name | None = None
    column: Name | None = None
    labels: Digest | None = None
    variant: VariantPlan | None = None


def _is_finite(value: Any) -> bool:
    """Whether no number in a value, such as a list of numbers, is NaN or infinite."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


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

    @model_validator(mode="after")
    def _numbers_are_finite(self) -> Self:
        for key, value in self.settings.items():
            if not _is_finite(value):
                raise PydanticCustomError("finite", "numbers should be finite: {key}", {"key": key[: limits.NAME_MAX]})
        return self


class PartitionPlan(PartPlan):
    """How the training set is shared out, for clients that hold a share of a public data set."""

    always = MappingProxyType({"min_examples": 1})


class TrainingPlan(PartPlan):
    """How clients train. steps: optimiser steps a task, unless epochs is given."""

    always = MappingProxyType({"momentum": 0.0, "weight_decay": 0.0})


class ObjectivePlan(PartPlan):
    """Loss of the training and metrics of evaluations."""

    always = MappingProxyType({})


class EncodingPlan(_Strict):
    """How payloads to and from a client are encoded. block: B of int8, there exactly where that is. keep: k of top-k,
    likewise.
    """

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
    """Evaluation of the task's model on the client's own test examples.

    The metrics `accuracy` and `loss` have fields of their own, which older receivers require; see `own_evaluation`.
    """

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None  # fraction
    loss: Loss | None = None  # nats
    examples: Positive
    metrics: Metrics | None = None  # all others

    @property
    def by_name(self) -> dict[str, float]:
        """All metrics."""
        named = {"accuracy": self.accuracy, "loss": self.loss}
        return {name: value for name, value in named.items() if value is not None} | (self.metrics or {})


def own_evaluation(metrics: Mapping[str, float], examples: int) -> OwnEvaluation:
    """The evaluation with these metrics. An accuracy in percent is sent with the others: it is out of its bound."""
    others = dict(metrics)
    accuracy = others.pop("accuracy") if 0 <= others.get("accuracy", -1) <= 1 else None
    loss = others.pop("loss") if abs(others.get("loss", math.inf)) <= limits.LOSS_MAX else None
    return OwnEvaluation(accuracy=accuracy, loss=loss, examples=examples, metrics=others or None)


class ProcessStart(_Strict):
    """Start of a client's process. home: random name of its directory. number: count of starts there."""

    home: Token
    number: Positive


class Hello(Message):
    """Client to server: joins the run, or rejoins after a reconnect.

    holding: ids of received tasks without an ack. encodings: supported ones; none for float32 alone.
    """

    type: ClassVar[str] = "hello"
    client_id: ClientId
    session: Token  # 16 random bytes in hex, drawn once per process
    holding: Annotated[tuple[Positive, ...], Field(max_length=limits.HOLDING_MAX)] = ()
    encodings: Annotated[tuple[Name, ...], Field(max_length=limits.ENCODINGS_MAX)] | None = None
    start: ProcessStart | None = None  # of the process; none if it stores nothing


class Welcome(Message):
    """Server to client: accepts the client, and describes the run.

    buffers: float buffers of the model, behind the parameters in every payload.
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
    objective: ObjectivePlan | None = None  # none for classification
    buffers: Annotated[tuple[TensorSpec, ...], Field(max_length=limits.TENSORS_MAX)] | None = None
    extra: bool | None = None  # whether a vector as long as the parameters follows them
    encoding: EncodingPlan | None = None  # of payloads to and from this client; none for float32
    settings: ClientSettings | None = None  # for the training of the clients, which the server does not use
    frozen: Digest | None = None  # of the frozen parameters, which no payload holds; none where there are none

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
    """Server to client: train from this model, which is the payload (PROTOCOL.md 9).

    number: count of the client's earlier tasks; with the client id the key of the task's random draws.
    """

    type: ClassVar[str] = "task"
    task_id: Positive
    number: Count
    version: Count
    learning_rate: LearningRate  # eta_l, per step
    signature: Digest
    payload_bytes: PayloadBytes
    evaluate: bool | None = None  # whether to evaluate the model on the client's own test examples
    run_id: Token | None = None  # for a client that has missed the welcome
    checksum: Checksum | None = None  # of a payload in chunks
    encoding: ModelEncoding | None = None  # of the payload; none for float32
    accepted_task: Count | None = None  # newest task of this client whose update was accepted; 0 for none


class Update(Message):
    """Client to server: the result of a task. The payload is the vector."""

    type: ClassVar[str] = "update"
    task_id: Positive
    base_version: Count
    kind: Literal["gradient", "delta"]  # unit of the vector
    num_examples: Positive  # n_i, examples of the client
    steps: Positive
    loss: Loss  # mean mini-batch loss, nats
    learning_rate: LearningRate  # eta_l, by which the server divides a delta
    signature: Digest
    payload_bytes: PayloadBytes
    batch_examples: Positive | None = None  # m_i, of a gradient's mini-batch; none for num_examples
    evaluation: OwnEvaluation | None = None
    checksum: Checksum | None = None  # of a payload in chunks
    encoding: UpdateEncoding | None = None  # of the payload; none for float32
    metrics: Metrics | None = None  # of the training


class Chunk(Message):
    """Both ways: a piece of an announced payload, in one frame. offset: of its first byte.

    From a client it is part of the task's update, from the server of its model.
    """

    type: ClassVar[str] = "chunk"
    task_id: Positive
    offset: Offset


class Credit(Message):
    """Both ways: the receiver's progress with a payload, and the limit for its sender."""

    type: ClassVar[str] = "credit"
    task_id: Positive
    have: Offset  # bytes received without a gap
    until: Offset  # end of the bytes that may be sent; equal to `have`: wait
    again: bool | None = None  # resend from `have` on

    @model_validator(mode="after")
    def _is_not_behind(self) -> Self:
        if self.until < self.have:
            raise PydanticCustomError("until", "until should not be less than have")
        return self


class Ack(Message):
    """Server to client: the verdict on an update. A repeated update gets `duplicate` and its first verdict."""

    type: ClassVar[str] = "ack"
    task_id: Positive
    outcome: Literal["accepted", "duplicate", "rejected"]
    first_outcome: Literal["accepted", "rejected"]
    reason: WireReason | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.outcome != "duplicate" and self.outcome != self.first_outcome:
            raise PydanticCustomError("outcome", "first_outcome should be equal to outcome unless that is 'duplicate'")
        if (self.reason is None) != (self.first_outcome == "accepted"):
            raise PydanticCustomError("reason", "reason should be given exactly when first_outcome is 'rejected'")
        return self


class Heartbeat(Message):
    """Both ways: the sender is alive. The server answers each heartbeat with its number.

    Messages of one connection keep their order: if the answer to a heartbeat comes before the ack of an earlier update,
    the update or the ack was lost. `newest_task` and `heard`, of a client only, reveal a lost task to the server.

    newest_task: id of the newest received task of this run; 0 for none, or for one that was given back.
    """

    type: ClassVar[str] = "heartbeat"
    number: Count  # count of the client's earlier heartbeats of this session
    version: Count  # the newest that the sender knows
    newest_task: Count | None = None
    heard: Count | None = None  # number of the newest answered heartbeat


class Bye(Message):
    """Client to server: the client leaves; the server's answer after the end of a run. reason: for people."""

    type: ClassVar[str] = "bye"
    reason: Text = ""


class Stop(Message):
    """Server to client: stop working. reason: `superseded` if another process took over the client id."""

    type: ClassVar[str] = "stop"
    reason: Literal["finished", "shutdown", "superseded"]
    version: Count
    failed: bool | None = None  # with `shutdown`, the run has failed and is not resumed automatically
    message: Text | None = None  # for people


class Error(Message):
    """Both ways: a message was refused, or a client gives a task back.

    task_id: of that task. reason: then `non-finite` if the training diverged, `unavailable` if it skips the round.
    code_error: code of the client's user raised; with `non-finite`, for servers that do not know this field.
    refused: type of the refused message, as far as it could be read.
    """

    type: ClassVar[str] = "error"
    reason: WireReason
    message: Text = ""
    task_id: Positive | None = None
    code_error: bool | None = None
    refused: Name | None = None
