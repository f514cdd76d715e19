"""Hostile clients: every message is invalid, and must be refused with its reason."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from swarm.network import Frames
from unstale.seeds import Generator
from unstale_proto import codec
from unstale_proto.messages import Heartbeat, Message, Stop, Update
from unstale_proto.transfer import checksum

NORM_MAX = 1e9  # of updates; those of other clients are far shorter
RUBBISH_MAX = 4  # messages for one task


class Bad(NamedTuple):
    """An update of a hostile client."""

    update: Update
    parcel: Frames


class HostileUpdates:
    """Of one client. rng: its draws."""

    def __init__(self, rng: Generator) -> None:
        self._rng = rng

    def update(self, right: Update, numbers: int) -> Bad:
        """Replaces the valid update. numbers: of the valid payload."""
        kind = ("non-finite", "too long", "zero", "wrong size", "another model")[int(self._rng.integers(5))]
        values = np.ones(numbers, dtype="<f4")
        update = right
        if kind == "non-finite":
            values[int(self._rng.integers(numbers))] = (np.nan, np.inf, -np.inf)[int(self._rng.integers(3))]
        elif kind == "too long":
            values *= 2 * NORM_MAX
        elif kind == "zero":
            values *= 0
            update = right.model_copy(update={"kind": "delta"})  # a gradient may be 0
        elif kind == "wrong size":
            values = np.ones(numbers + (1, -1)[int(self._rng.integers(2))], dtype="<f4")
            update = right.model_copy(update={"payload_bytes": values.nbytes})
        else:
            update = right.model_copy(update={"signature": "ab" * 32})
        parcel = [memoryview(values.tobytes())]
        if right.checksum is not None:
            update = update.model_copy(update={"checksum": checksum(parcel)})
        return Bad(update, parcel)

    def rubbish(self, right: Update, parcel: Frames) -> Sequence[tuple[bytes, Frames]]:
        """Its other messages, as headers with payloads."""
        return [self._one(right, parcel) for _ in range(int(self._rng.integers(RUBBISH_MAX + 1)))]

    def _one(self, right: Update, parcel: Frames) -> tuple[bytes, Frames]:
        kind = int(self._rng.integers(5))
        if kind == 0:
            return self._rng.bytes(int(self._rng.integers(40))), ()
        never_given = right.task_id + 10**6
        summary: Sequence[Message] = (
            right.model_copy(update={"task_id": never_given, "checksum": None}),
            right.model_copy(update={"base_version": right.base_version + 1, "checksum": None}),
            Stop(reason="finished", version=10**6),
            Heartbeat(number=10**6, version=0, newest_task=never_given, heard=10**6),
        )
        message = summary[kind - 1]
        return codec.encode(message), parcel if isinstance(message, Update) else ()
