"""Translates between messages of the wire and events, actions and updates of the coordinator."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import isfinite
from typing import cast

from torch import Tensor

from unstale.coordinator import actions, events
from unstale.learner.updates import RoundUpdate, StagedUpdate
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.errors import Reason
from unstale_proto.messages import (
    Ack,
    Bye,
    Chunk,
    Credit,
    Error,
    Heartbeat,
    Hello,
    Message,
    ModelEncoding,
    OwnEvaluation,
    Stop,
    Task,
    TensorSpec,
    Update,
    UpdateEncoding,
    own_evaluation,
)

CODE_ERROR = "code-error"

_OTHERS = {"client_id", "batch_examples", "local_rate", "metrics"}
_SAME_IN_HEADER = {field.name for field in fields(StagedUpdate)} - _OTHERS
"""Fields of a staged update that are also fields of the header, with the same meaning."""

# --- messages to events ---


def to_event(message: Message, client_id: int, at_s: float) -> events.Event | None:
    """The event of a message without a payload; None for a message without one."""
    match message:
        case Heartbeat() | Chunk() | Credit():
            return events.HeartbeatReceived(client_id=client_id, at_s=at_s)
        case Bye():
            return events.ClientLeft(client_id=client_id, at_s=at_s)
        case Error(task_id=int(task_id), reason=Reason.UNAVAILABLE):
            return events.TaskDeclined(client_id=client_id, task_id=task_id, at_s=at_s)
        case Error(task_id=int(task_id), code_error=True):
            return events.TaskRaised(client_id=client_id, task_id=task_id, at_s=at_s)
        case Error(task_id=int(task_id)):
            return events.TaskFailed(client_id=client_id, task_id=task_id, at_s=at_s)
        case _:
            return None


def cause_of(error: Error) -> str:
    """Why a client gives a task back, for people and metrics: a reason of the wire, or `CODE_ERROR`."""
    is_code_error = error.code_error and error.reason is not Reason.UNAVAILABLE
    return CODE_ERROR if is_code_error else error.reason.value


def to_client_joined(hello: Hello, at_s: float, *, same_connection: bool) -> events.ClientJoined:
    """same_connection: the client has sent a hello on this connection before."""
    return events.ClientJoined(
        client_id=hello.client_id, at_s=at_s, holding=hello.holding, same_connection=same_connection
    )


def to_update_arrived(
    update: Update, client_id: int, handle: int, defect: Reason | None, at_s: float
) -> events.UpdateArrived:
    """handle: of the staged payload, -1 for none. defect: of the payload."""
    return events.UpdateArrived(
        client_id=client_id,
        task_id=update.task_id,
        base_version=update.base_version,
        handle=handle,
        at_s=at_s,
        defect=None if defect is None else defect.value,
    )


def to_staged(update: Update, client_id: int) -> StagedUpdate:
    """The header of a staged update."""
    return StagedUpdate(
        client_id=client_id,
        batch_examples=update.batch_examples or update.num_examples,
        local_rate=update.learning_rate,
        metrics=update.metrics or {},
        **{name: getattr(update, name) for name in _SAME_IN_HEADER},
    )


def to_round(contributions: Sequence[actions.Contribution], staged: Sequence[StagedUpdate]) -> tuple[RoundUpdate, ...]:
    """The updates of a round, in order of arrival."""
    return tuple(
        update.in_round(contribution.staleness) for contribution, update in zip(contributions, staged, strict=True)
    )


# --- models and actions to messages ---


def to_specs(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorSpec, ...]:
    """Tensors by name, which are float32 in every payload."""
    return tuple(TensorSpec(name=name, shape=tuple(tensor.shape), dtype="float32") for name, tensor in tensors)


def to_task(
    action: actions.SendTask,
    *,
    learning_rate: float,
    signature: str,
    payload_bytes: int,
    evaluate: bool,
    run_id: str | None = None,
    checksum: str | None = None,
    encoding: str | None = None,
    accepted_task: int | None = None,
) -> Task:
    """encoding: of the model; None for float32."""
    return Task(
        task_id=action.task_id,
        number=action.number,
        version=action.version,
        learning_rate=learning_rate,
        signature=signature,
        payload_bytes=payload_bytes,
        evaluate=evaluate or None,
        run_id=run_id,
        checksum=checksum,
        encoding=cast("ModelEncoding | None", encoding),
        accepted_task=accepted_task,
    )


def to_ack(action: actions.Acknowledge) -> Ack:
    return Ack(
        task_id=action.task_id,
        outcome=action.outcome.value,
        first_outcome="accepted" if action.first_outcome is actions.Outcome.ACCEPTED else "rejected",
        reason=None if action.reason is None else Reason(action.reason),
    )


def to_stop(action: actions.Finish) -> Stop:
    return Stop(reason="shutdown" if action.reason == "shutdown" else "finished", version=action.version)


# --- updates to messages ---


def to_update(
    task: Task, local: LocalUpdate, evaluation: Measured | None = None, *, encoding: Encoding | None = None
) -> Update:
    """The header of an update. Its payload is `payload_parts`.

    evaluation: of the task's model, if requested. encoding: of the payload; None for float32.
    """
    encoded = None if encoding is None or encoding.name == FLOAT32 else encoding
    return Update(
        task_id=task.task_id,
        base_version=task.version,
        kind=local.kind,
        num_examples=local.num_examples,
        steps=local.steps,
        loss=local.loss,
        learning_rate=local.learning_rate,
        signature=task.signature,
        payload_bytes=encoded.payload_bytes if encoded else sum(part.nbytes for part in payload_parts(local)),
        batch_examples=None if local.batch_examples == local.num_examples else local.batch_examples,
        evaluation=None if evaluation is None else _own(evaluation),
        encoding=cast("UpdateEncoding", encoded.name) if encoded else None,
        metrics=dict(local.metrics) or None,
    )


def payload_parts(local: LocalUpdate) -> tuple[Tensor, ...]:
    """The vectors of an update's payload in order: update, buffers, extra vector."""
    if local.buffers_b is None and local.extra_d is None:  # the common case; several times as fast
        return (local.vector_d,)
    parts = (local.vector_d, local.buffers_b, local.extra_d)
    return tuple(part for part in parts if part is not None)


def _own(evaluation: Measured) -> OwnEvaluation | None:
    """None where accuracy or loss is not finite; the model may still be trainable on other clients. Other metrics that
    are not finite, such as r2 of constant targets, are left out.
    """
    metrics = evaluation.metrics
    if not all(isfinite(metrics[name]) for name in ("accuracy", "loss") if name in metrics):
        return None
    finite = {name: value for name, value in metrics.items() if isfinite(value)}
    return own_evaluation(finite, evaluation.num_examples) if finite else None
