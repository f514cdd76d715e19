"""Inversions that are computed elsewhere: what goes there, what is done there, what comes back.

Legend: d parameters, r reconstructed examples, C classes, B updates of a group.
"""

from collections.abc import Collection, Iterable, Sequence

import torch

from unstale.compensators.elsewhere import Elsewhere, Tensors
from unstale.compensators.inversion.choice import marks
from unstale.compensators.inversion.engine import Engine, Inversion
from unstale.compensators.inversion.reconstruction import Reconstruction
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
    }


def computed(group: Tensors, network: Network, engine: Engine, device: torch.device) -> Tensors:
    """Do all iterations of what was packed; what becomes of it. An update that is too large for the device's memory
    is said to be."""
    inversions = [
        Inversion(
            base=network.parts(base_d),
            update=network.parts(update_d),
            steps=int(group["steps"]),
            rate=rate,
            iterations=iterations,
            now=Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC),
            marks=marks(iterations),
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
    try:
        while some := [one for one in inversions if not one.is_over]:
            engine.iterate(some)
    except torch.OutOfMemoryError:
        for one in inversions:
            one.is_too_large = not one.is_over
    looked_at = marks(max(one.done for one in inversions))
    kept = [[one.kept.get(mark, one.now) for one in inversions] for mark in looked_at]
    return {
        "marks_M": torch.tensor(looked_at),
        "inputs_MBrX": torch.stack([torch.stack([each.inputs_rX for each in some]) for some in kept]).cpu(),
        "labels_MBrC": torch.stack([torch.stack([each.labels_rC for each in some]) for some in kept]).cpu(),
        "disparity_B": torch.stack([one.disparity.cpu() for one in inversions]),
        "done_B": torch.tensor([one.done for one in inversions]),
        "is_too_large_B": torch.tensor([one.is_too_large for one in inversions]),
        "together": torch.tensor(engine.together),
    }


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
        one.kept = {mark: kept for mark, kept in one.kept.items() if mark in one.marks and mark <= one.done}
        one.is_too_large = bool(answer["is_too_large_B"][place])
    return int(answer["done_B"].sum())


class Away:
    """Keeps what is under way elsewhere. device: of the learner."""

    def __init__(self, elsewhere: Elsewhere, device: torch.device) -> None:
        self._elsewhere = elsewhere
        self._device = device
        self._groups: dict[int, list[Inversion]] = {}
        self._lost: list[Inversion] = []

    def has(self, one: Inversion) -> bool:
        """Whether it is there, or was and got lost."""
        return self.is_lost(one) or any(_is_among(one, group) for group in self._groups.values())

    def is_lost(self, one: Inversion) -> bool:
        return _is_among(one, self._lost)

    def send(self, groups: Iterable[Sequence[Inversion]]) -> None:
        """Have these computed, each of one kind, with as many iterations as they say."""
        for group in groups:
            self._groups[self._elsewhere.submit(packed(group))] = list(group)

    def fetch(self, wanted: Collection[Inversion], longest_s: float | None) -> "Fetched":
        """Wait for these, and take back what is there in time. longest_s: None for as long as it takes."""
        numbers = [
            number for number, group in self._groups.items() if any(_is_among(one, wanted) for one in group)
        ]
        fetched = Fetched()
        for number, answer in self._elsewhere.wait(numbers, longest_s).items():
            group = self._groups.pop(number)
            if isinstance(answer, str):
                self._lost += group
                fetched.whys.append(answer)
                continue
            planned = sum(one.iterations for one in group)
            fetched.saved += planned - taken_back(group, answer, self._device)
            fetched.seconds += float(answer["seconds"])
            fetched.together = min(fetched.together, int(answer["together"]))
        return fetched

    def forget(self, those: Collection[Inversion]) -> None:
        """Nobody asks for these any more, wherever they are."""
        self._lost = [one for one in self._lost if not _is_among(one, those)]
        for number, group in list(self._groups.items()):
            if all(_is_among(one, those) for one in group):
                self._elsewhere.cancel(number)
                del self._groups[number]


class Fetched:
    """What came back. saved: iterations that were planned and not needed. seconds: of computing. together: how many
    updates fitted into the memory of the smallest device. whys: of what was lost."""

    def __init__(self) -> None:
        self.saved = 0
        self.seconds = 0.0
        self.together = 10**9
        self.whys: list[str] = []


def _is_among(one: Inversion, several: Iterable[Inversion]) -> bool:
    return any(one is other for other in several)
