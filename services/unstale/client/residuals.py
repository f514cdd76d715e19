"""Error feedback: what of a client's updates was left out so far, to be added to its next one. Pure.

    sent_n = what C leaves of (u_n + e_n)        e = the sum of (u_i - sent_i) over the updates i that count

u: what training made. C: an encoding that leaves out much. So what has been sent and e are together what training has
made, up to rounding. An update that is rejected counts no more than without an encoding: what it held is gone, and e is
as if it had never been made. One whose verdict is open is taken for accepted, which most are.

Source: Sparsified SGD (Stich et al., NeurIPS 2018), docs/methods/training.md#error-feedback; Error feedback
(Karimireddy et al., ICML 2019), docs/methods/training.md#error-feedback
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unstale import flat
from unstale_proto.encodings import Encoding
from unstale_proto.limits import HOLDING_MAX

KEY = "residual"
"""Under which an update's part of it is stored, beside what trainings keep."""

Payload = list[memoryview]


class Residuals:
    """Of the clients of a process. One thread. An update is known by client and number of the task."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}
        self._open: dict[int, dict[int, Tensor]] = {}

    def encode(
        self, client_id: int, number: int, parts: Sequence[Tensor], encoding: Encoding
    ) -> tuple[Payload, Mapping[str, Tensor]]:
        """The payload of an update as frames, and what is to be stored with it.

        parts: of the payload, the first of them [d] float32; none is written to. The same update may be encoded again,
        with the same result. Not finite ones leave nothing behind.
        """
        vector_d, *others = (part.detach().cpu() for part in parts)
        behind = [flat.to_bytes(part) for part in others]
        if not encoding.feeds_back:
            return encoding.frames([flat.to_bytes(vector_d), *behind]), {}
        whole_d = vector_d + self._before(client_id, number, vector_d)
        frames = encoding.frames([flat.to_bytes(whole_d), *behind])
        sent_d = flat.from_bytes(encoding.decode(frames), encoding.dimension + encoding.behind)
        change_d = vector_d - sent_d[: encoding.dimension]
        if not flat.is_finite(change_d):
            return frames, {}
        opened = self._open.setdefault(client_id, {})
        opened[number] = change_d
        if len(opened) > HOLDING_MAX:
            del opened[next(iter(opened))]
        return frames, {KEY: change_d}

    def settle(self, client_id: int, number: int, *, accepted: bool) -> bool:
        """What becomes of an update is known. Once: a second time does nothing. Whether anything changed."""
        opened = self._open.get(client_id, {})
        change_d = opened.pop(number, None)
        if not opened:
            self._open.pop(client_id, None)
        if change_d is None or not accepted:
            return False
        kept_d = self._kept.get(client_id)
        self._kept[client_id] = change_d if kept_d is None else kept_d + change_d
        return True

    def kept(self, client_id: int) -> Mapping[str, Tensor]:
        """What is to be stored of a client: e without what is open. No copy."""
        return {KEY: self._kept[client_id]} if client_id in self._kept else {}

    def restore(
        self, client_id: int, kept: Mapping[str, Tensor], opened: Mapping[int, Mapping[str, Tensor]]
    ) -> None:
        """Take over what a process before this one stored: as `kept` and, by number, `encode` gave it, perhaps among
        other things."""
        if KEY in kept:
            self._kept[client_id] = kept[KEY]
        found = {number: state[KEY] for number, state in opened.items() if KEY in state}
        if found:
            self._open[client_id] = found

    def clear(self) -> None:
        """Another run begins."""
        self._kept.clear()
        self._open.clear()

    def _before(self, client_id: int, number: int, like_d: Tensor) -> Tensor:
        """e of a client before an update of it."""
        before_d = self._kept.get(client_id)
        before_d = torch.zeros_like(like_d) if before_d is None else before_d
        for earlier, change_d in sorted(self._open.get(client_id, {}).items(), key=lambda item: item[0]):
            if earlier < number:
                before_d = before_d + change_d
        return before_d


def without(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What trainings keep, of what is stored of a client."""
    return {name: tensor for name, tensor in state.items() if name != KEY}
