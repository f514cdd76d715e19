"""Inversions that are computed executor: what goes there, what is done there, what comes back.

Legend: d parameters, r reconstructed examples, C classes, B updates of a group.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from unstale.compensators.executor import Executor, Tensors
from unstale.compensators.inversion.engine import Engine, Inversion
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.compensators.local_update import as_vector
from unstale.compensators.network import Network


def packed(group: Sequence[Inversion]) -> Tensors:
    """What inverting a group needs, which is of one kind and has not begun."""
    return {
        "base_Bd": torch.stack([as_vector(one.base) for one in group]).cpu(),
        "update_Bd": torch.stack([as_vector(one.update) for one in group]).cpu(),
        "inputs_BrX": torch.stack([one.now.inputs_rX for one in group]).cpu(),
        "labels_BrC": torch.stack([one.now.labels_rC for one in group]).cpu(),
        "steps": torch.tensor(group[0].steps),
        "rate_B": torch.tensor([one.rate for one in group], dtype=torch.float64),
        "iterations_B": torch.tensor([one.iterations for one in group]),
        "has_marks": torch.tensor(bool(group[0].loss_checkpoints)),
    }


def computed(group: Tensors, network: Network, engine: Engine, device: torch.device) -> Tensors:
    """Do all iterations of what was packed; what becomes of it. An update that is too large for the device's memory
    is said to be."""
    inversions = _unpacked(group, network, torch.device("cpu"))
    try:
        inversions = _unpacked(group, network, device)
        while some := [one for one in inversions if not one.is_over]:
            engine.iterate(some)
    except torch.OutOfMemoryError:
        for one in inversions:
            one.is_too_large = not one.is_over
    return _packed_results(inversions, engine.together, has_marks=bool(group["has_marks"]))


def _packed_results(inversions: Sequence[Inversion], together: int, *, has_marks: bool) -> Tensors:
    """Results of inversions as tensors. together: inversions that fit into the device's memory at once."""
    longest = max(one.done for one in inversions)
    looked_at = loss_checkpoints(longest) if has_marks else (longest,)
    kept = [[one.kept.get(mark, one.now).to("cpu") for one in inversions] for mark in looked_at]
    return {
        "marks_M": torch.tensor(looked_at),
        "inputs_MBrX": torch.stack([torch.stack([each.inputs_rX for each in some]) for some in kept]),
        "labels_MBrC": torch.stack([torch.stack([each.labels_rC for each in some]) for some in kept]),
        "disparity_B": torch.stack([one.disparity.cpu() for one in inversions]),
        "done_B": torch.tensor([one.done for one in inversions]),
        "is_too_large_B": torch.tensor([one.is_too_large for one in inversions]),
        "together": torch.tensor(together),
    }


def _unpacked(group: Tensors, network: Network, device: torch.device) -> list[Inversion]:
    has_marks = bool(group["has_marks"])
    return [
        Inversion(
            base=network.parts(base_d),
            update=network.parts(update_d),
            steps=int(group["steps"]),
            rate=rate,
            iterations=iterations,
            now=Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC),
            loss_checkpoints=loss_checkpoints(iterations) if has_marks else (),
        )
        for base_d, update_d, inputs_rX, labels_rC, rate, iterations in zip(
            group["base_Bd"].to(device),
            group["update_Bd"].to(device),
            group["inputs_BrX"].to(device),
            group["labels_BrC"].to(device),
            group["rate_B"].tolist(),
            group["iterations_B"].tolist(),
            strict=True,
        )
    ]


def taken_back(group: Sequence[Inversion], answer: Tensors, device: torch.device) -> int:
    """Put what was computed into the inversions of the group; how many iterations there were."""
    looked_at = answer["marks_M"].tolist()
    for place, one in enumerate(group):
        one.kept = {
            mark: Reconstruction(
                inputs_rX=answer["inputs_MBrX"][number, place], labels_rC=answer["labels_MBrC"][number, place]
            ).to(device)
            for number, mark in enumerate(looked_at)
        }
        one.now = one.kept[looked_at[-1]]
        one.disparity = answer["disparity_B"][place].to(device)
        one.done = one.iterations = int(answer["done_B"][place])
        one.kept = {
            mark: kept for mark, kept in one.kept.items() if mark in one.loss_checkpoints and mark <= one.done
        }
        one.is_too_large = bool(answer["is_too_large_B"][place])
    return int(answer["done_B"].sum())


@dataclass(slots=True, kw_only=True)
class _Sent:
    """A group that is there. awaited: those of it that a round may still ask for."""

    group: list[Inversion]
    awaited: list[Inversion]
    sent_s: float


class RemoteInversions:
    """Keeps what is under way elsewhere. device: of the learner. clock: seconds; 0 where nobody counts them."""

    def __init__(self, executor: Executor, device: torch.device, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._device = device
        self._clock = clock
        self._sent: dict[int, _Sent] = {}
        self._lost: list[Inversion] = []

    def has(self, one: Inversion) -> bool:
        """Whether it is there, or was and got lost."""
        return self.is_lost(one) or any(_is_among(one, sent.group) for sent in self._sent.values())

    def is_lost(self, one: Inversion) -> bool:
        return _is_among(one, self._lost)

    def send(self, groups: Iterable[Sequence[Inversion]]) -> None:
        """Have these computed, each of one kind, with as many iterations as they say."""
        for group in groups:
            sent = _Sent(group=list(group), awaited=list(group), sent_s=self._clock())
            self._sent[self._executor.submit(packed(group))] = sent

    def fetch(self, wanted: Collection[Inversion], longest_s: float | None) -> "Fetched":
        """Wait for these, and take back what is there in time. longest_s: None for as long as it takes."""
        numbers = [
            number for number, sent in self._sent.items() if any(_is_among(one, wanted) for one in sent.group)
        ]
        fetched = Fetched()
        for number, answer in self._executor.wait(numbers, longest_s).items():
            sent = self._sent.pop(number)
            if isinstance(answer, str):
                self._lost += sent.awaited
                fetched.whys.append(answer)
                fetched.seconds += self._clock() - sent.sent_s
                continue
            planned = sum(one.iterations for one in sent.group)
            fetched.saved += planned - taken_back(sent.group, answer, self._device)
            fetched.seconds += float(answer["seconds"])
            fetched.together = min(fetched.together, int(answer["together"]))
        return fetched

    def forget(self, those: Collection[Inversion]) -> float:
        """Nobody asks for these any more, wherever they are. A group that nobody asks for is cancelled; the seconds
        since such were sent."""
        self._lost = [one for one in self._lost if not _is_among(one, those)]
        seconds = 0.0
        for number, sent in list(self._sent.items()):
            sent.awaited = [one for one in sent.awaited if not _is_among(one, those)]
            if not sent.awaited:
                self._executor.cancel(number)
                del self._sent[number]
                seconds += self._clock() - sent.sent_s
        return seconds


class Fetched:
    """What came back. saved: iterations that were planned and not needed. seconds: of computing, and since what
    was lost had been sent. together: how many
    updates fitted into the memory of the smallest device. whys: of what was lost."""

    def __init__(self) -> None:
        self.saved = 0
        self.seconds = 0.0
        self.together = 10**9
        self.whys: list[str] = []


def _is_among(one: Inversion, several: Iterable[Inversion]) -> bool:
    return any(one is other for other in several)
