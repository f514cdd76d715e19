"""Error feedback: the part of a client's updates that the encoding left out is added to its next update. Pure.

    sent_n = C(u_n + e_n)        e_n = the sum of (u_i - sent_i) over the updates i before n that count

u: trained updates. C: a lossy encoding. The sum of everything sent, plus e, is the sum of the trained updates, up to
rounding. A rejected update does not count, as without an encoding. An update without a verdict counts as accepted, as
most are.

Source: Sparsified SGD (Stich et al., NeurIPS 2018), docs/methods/training.md#error-feedback; Error feedback
(Karimireddy et al., ICML 2019), docs/methods/training.md#error-feedback
"""

from collections.abc import Mapping, Sequence

import numpy as np

from unstale_client import vectors
from unstale_proto.encodings import Encoding, Vector
from unstale_proto.limits import HOLDING_MAX

KEY = "residual"
"""Name of the residual in a client's stored state, beside the state of trainings."""

Payload = list[memoryview]


class Residuals:
    """Residuals of the clients of a process, for one thread. `number` is that of an update's task."""

    def __init__(self) -> None:
        self._kept: dict[int, Vector] = {}
        self._open: dict[int, dict[int, Vector]] = {}

    def encode(
        self, client_id: int, number: int, parts: Sequence[Vector], encoding: Encoding
    ) -> tuple[Payload, Mapping[str, Vector]]:
        """The payload of an update, and the state to store with it: none if something is not finite. Repeating the
        call gives the same result. parts: of the payload, the first [d] float32.
        """
        vector_d, *parts_behind = parts
        behind = [vectors.to_bytes(part) for part in parts_behind]
        if not encoding.feeds_back:
            return encoding.frames([vectors.to_bytes(vector_d), *behind]), {}
        with np.errstate(all="ignore"):  # of numbers that are not finite
            whole_d = vector_d + self._before(client_id, number, vector_d)
            frames = encoding.frames([vectors.to_bytes(whole_d), *behind])
            sent_d = vectors.from_bytes(encoding.decode(frames), encoding.dimension + encoding.behind)
            change_d = vector_d - sent_d[: encoding.dimension]
        if not vectors.is_finite(change_d):
            return frames, {}
        opened = self._open.setdefault(client_id, {})
        opened[number] = change_d
        if len(opened) > HOLDING_MAX:
            del opened[next(iter(opened))]
        return frames, {KEY: change_d}

    def settle(self, client_id: int, number: int, *, accepted: bool) -> bool:
        """Apply the final outcome of an update, once. Returns whether the client's residual changed."""
        opened = self._open.get(client_id, {})
        change_d = opened.pop(number, None)
        if not opened:
            self._open.pop(client_id, None)
        if change_d is None or not accepted:
            return False
        kept_d = self._kept.get(client_id)
        self._kept[client_id] = change_d if kept_d is None else kept_d + change_d
        return True

    def kept(self, client_id: int) -> Mapping[str, Vector]:
        """State to store for a client: e without unsettled updates. No copy."""
        return {KEY: self._kept[client_id]} if client_id in self._kept else {}

    def restore(self, client_id: int, kept: Mapping[str, Vector], opened: Mapping[int, Mapping[str, Vector]]) -> None:
        """Restore stored states: that of `kept`, and by number those of `encode`. They may hold other entries."""
        if KEY in kept:
            self._kept[client_id] = kept[KEY]
        changes = {number: state[KEY] for number, state in opened.items() if KEY in state}
        if changes:
            self._open[client_id] = changes

    def clear(self) -> None:
        """Another run begins."""
        self._kept.clear()
        self._open.clear()

    def _before(self, client_id: int, number: int, like_d: Vector) -> Vector:
        """e of a client before one of its updates."""
        before_d = self._kept.get(client_id)
        before_d = np.zeros_like(like_d) if before_d is None else before_d
        for earlier, change_d in sorted(self._open.get(client_id, {}).items(), key=lambda item: item[0]):
            if earlier < number:
                before_d = before_d + change_d
        return before_d


def without(state: Mapping[str, Vector]) -> dict[str, Vector]:
    """A client's stored state without the residual: the state of trainings."""
    return {name: vector_d for name, vector_d in state.items() if name != KEY}
