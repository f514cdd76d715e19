"""The run of an examination: a model of three tensors, a welcome and tasks."""

from functools import cache
from typing import Any

import numpy as np

from unstale_proto import signature
from unstale_proto.messages import EncodingPlan, Task, TensorSpec, Welcome

VERSION = 41
HEARTBEAT_S = 0.25
LEASE_S = 30.0
LEARNING_RATE = 0.5
TRAIN_SETTING = "train_s"
TRAIN_S = 1.5  # in that setting: the client's training takes this long, so that messages come while it trains
RUN_ID = "0123456789abcdef" * 2
OTHER_RUN_ID = "fedcba9876543210" * 2
QUIET_BEATS = 5  # heartbeats without an unwanted message
SHAPES = {"weight": (5, 3), "bias": (5,), "scale": ()}
CHUNKED_SHAPES = {"weight": (1280, 1024), "bias": (5,)}  # 5 MiB and 20 bytes


def welcome(
    client_id: int = 3,
    *,
    run_id: str = RUN_ID,
    lease_s: float = LEASE_S,
    chunked: bool = False,
    encoding: EncodingPlan | None = None,
    train_s: float = 0.0,
) -> Welcome:
    tensors = tuple(
        TensorSpec(name=name, shape=shape, dtype="float32")
        for name, shape in (CHUNKED_SHAPES if chunked else SHAPES).items()
    )
    fields: dict[str, Any] = {
        "client_id": client_id,
        "run_id": run_id,
        "clients": 10,
        "seed": 7,
        "version": VERSION,
        "model": "examination",
        "data": "private",
        "partition": {"name": "private"},
        "training": {"name": "app"},
        "tensors": tensors,
        "signature": signature.digest(tensors),
        "heartbeat_s": HEARTBEAT_S,
        "lease_s": lease_s,
        "encoding": encoding,
        "settings": {TRAIN_SETTING: train_s},
    }
    return Welcome.model_validate(fields)


def task(task_id: int, of: Welcome, number: int = 0, **fields: Any) -> Task:
    """A task with a payload in float32."""
    return Task.model_validate(
        {
            "task_id": task_id,
            "number": number,
            "version": VERSION,
            "learning_rate": LEARNING_RATE,
            "signature": of.signature,
            "payload_bytes": signature.payload_bytes(of.tensors),
            "run_id": of.run_id,
            **fields,
        }
    )


@cache
def model(dimension: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers from -1 to 1, none of them 0."""
    return np.cos(np.arange(1, dimension + 1, dtype=np.float64)).astype("<f4")


def model_frames() -> list[bytes]:
    return [model(21).tobytes()]
