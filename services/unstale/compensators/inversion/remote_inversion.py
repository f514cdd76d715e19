"""Inversions on other machines: the tensors that go there, their computation there, and the tensors that come back.

Legend: d parameters, r reconstructed examples, C classes, B updates of a group.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor

from unstale.compensators.compensator import Executor
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.state import Inversion, State, Target
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.compensators.network import Network, as_vector
from unstale.errors import WorkerLostError

Tensors: TypeAlias = dict[str, Tensor]
"""By name, on the host."""


def packed(group: Sequence[Inversion]) -> Tensors:
    """The input of a group of inversions of one kind that have not begun."""
    targets = [one.target for one in group]
    return {
        "base_Bd": torch.stack([as_vector(target.base) for target in targets]).cpu(),
        "update_Bd": torch.stack([as_vector(target.update) for target in targets]).cpu(),
        "inputs_BrX": torch.stack([one.now.inputs_rX for one in group]).cpu(),
        "labels_BrC": torch.stack([one.now.labels_rC for one in group]).cpu(),
        "steps": torch.tensor(targets[0].steps),
        "rate_B": torch.tensor([target.rate for target in targets], dtype=torch.float64),
        "iterations_B": torch.tensor([one.iterations for one in group]),
        "has_marks": torch.tensor(bool(group[0].loss_checkpoints)),
    }


def computed(group: Tensors, network: Network, engine: Engine, device: torch.device) -> Tensors:
    """Compute all iterations of a packed group. The results mark updates that are too large for the device's memory."""
    inversions = _unpacked(group, network, torch.device("cpu"))
    try:
        inversions = _unpacked(group, network, device)
        while unfinished := [one for one in inversions if not one.is_over]:
            engine.iterate(unfinished)
    except torch.OutOfMemoryError:
        for one in inversions:
            one.is_too_large = not one.is_over
    engine.release(inversions)
    return _packed_results(inversions, engine.together, has_checkpoints=bool(group["has_marks"]))


def _packed_results(inversions: Sequence[Inversion], together: int, *, has_checkpoints: bool) -> Tensors:
    """Results of inversions as tensors. together: inversions that fit into the device's memory at once."""
    longest = max(one.done for one in inversions)
    checkpoints = loss_checkpoints(longest) if has_checkpoints else (longest,)
    kept = [one.kept.get(mark, one.now).to("cpu") for mark in checkpoints for one in inversions]
    shape = (len(checkpoints), len(inversions))
    return {
        "marks_M": torch.tensor(checkpoints),
        "inputs_MBrX": torch.stack([each.inputs_rX for each in kept]).view(*shape, *kept[0].inputs_rX.shape),
        "labels_MBrC": torch.stack([each.labels_rC for each in kept]).view(*shape, *kept[0].labels_rC.shape),
        "disparity_B": torch.stack([one.disparity.cpu() for one in inversions]),
        "done_B": torch.tensor([one.done for one in inversions]),
        "is_too_large_B": torch.tensor([one.is_too_large for one in inversions]),
        "together": torch.tensor(together),
    }


def _unpacked(group: Tensors, network: Network, device: torch.device) -> list[Inversion]:
    has_checkpoints = bool(group["has_marks"])
    return [
        Inversion(
            target=Target(
                base=network.parts(base_d), update=network.parts(update_d), steps=int(group["steps"]), rate=rate
            ),
            iterations=iterations,
            now=Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC),
            loss_checkpoints=loss_checkpoints(iterations) if has_checkpoints else (),
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
    """Write the results of a group into its inversions; the number of iterations."""
    checkpoints = answer["marks_M"].tolist()
    for index, one in enumerate(group):
        kept = {
            checkpoint: Reconstruction.row((inputs_BrX, labels_BrC), index).to(device)
            for checkpoint, inputs_BrX, labels_BrC in zip(
                checkpoints, answer["inputs_MBrX"], answer["labels_MBrC"], strict=True
            )
        }
        one.state = State.first(kept[checkpoints[-1]])._replace(disparity=answer["disparity_B"][index].to(device))
        one.done = one.iterations = int(answer["done_B"][index])
        one.kept = {
            checkpoint: reconstruction
            for checkpoint, reconstruction in kept.items()
            if checkpoint in one.loss_checkpoints and checkpoint <= one.done
        }
        one.is_too_large = bool(answer["is_too_large_B"][index])
    return int(answer["done_B"].sum())


@dataclass(slots=True, kw_only=True)
class _Sent:
    """A sent group. awaited: its inversions that a round may still need."""

    group: list[Inversion]
    awaited: list[Inversion]
    sent_s: float


class RemoteInversions:
    """Inversions on other machines. device: of the learner. clock: seconds; always 0 where time is virtual."""

    def __init__(self, executor: Executor, device: torch.device, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._device = device
        self._clock = clock
        self._sent: dict[Future[bytes], _Sent] = {}
        self._lost: list[Inversion] = []

    def has(self, one: Inversion) -> bool:
        """Whether it was sent and not fetched yet, or is lost."""
        return self.is_lost(one) or any(one in sent.group for sent in self._sent.values())

    def is_lost(self, one: Inversion) -> bool:
        return one in self._lost

    def send(self, groups: Iterable[Sequence[Inversion]]) -> None:
        """Send groups, each of one kind."""
        for group in groups:
            sent = _Sent(group=list(group), awaited=list(group), sent_s=self._clock())
            self._sent[self._executor.submit(save(packed(group)))] = sent

    def fetch(self, awaited: Collection[Inversion], longest_s: float | None) -> "Fetched":
        """Wait for these, and take the results that arrive in time. longest_s: None for no limit."""
        futures = [future for future, sent in self._sent.items() if any(one in awaited for one in sent.group)]
        done, _ = wait(futures, longest_s)
        fetched = Fetched()
        for future in (future for future in futures if future in done):
            sent = self._sent.pop(future)
            try:
                answer = load(future.result())
            except WorkerLostError as error:
                self._lost += sent.awaited
                fetched.whys.append(str(error))
                fetched.seconds += self._clock() - sent.sent_s
                continue
            planned = sum(one.iterations for one in sent.group)
            fetched.saved += planned - taken_back(sent.group, answer, self._device)
            fetched.seconds += float(answer["seconds"])
            fetched.together = min(fetched.together, int(answer["together"]))
        return fetched

    def forget(self, closed: Collection[Inversion]) -> float:
        """Give up inversions of closed rounds. Cancels groups without others; the seconds since these were sent."""
        self._lost = [one for one in self._lost if one not in closed]
        seconds = 0.0
        for future, sent in list(self._sent.items()):
            sent.awaited = [one for one in sent.awaited if one not in closed]
            if not sent.awaited:
                future.cancel()
                del self._sent[future]
                seconds += self._clock() - sent.sent_s
        return seconds


@dataclass(slots=True, kw_only=True)
class Fetched:
    """Results of other machines."""

    saved: int = 0  # iterations that were planned and not needed
    seconds: float = 0.0  # of computing, and since lost groups were sent
    together: int = 10**9  # updates that fit into the memory of the smallest device
    whys: list[str] = field(default_factory=list)  # why groups were lost
