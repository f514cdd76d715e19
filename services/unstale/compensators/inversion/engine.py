"""Gradient inversion by optimisation: examples and labels whose local update equals a given update.

Legend: d parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unstale.compensators.inversion.iteration import Iteration
from unstale.compensators.inversion.iterations import CapturedIterations, EagerIterations
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion
from unstale.compensators.network import LABEL_LOSSES, LocalSteps, Network, Parts, as_vector, local_update
from unstale.graphs import CudaGraphs, Graphs

GRAPHS_MAX = 8
"""CUDA graphs that are kept, each for one shape of groups. Groups of one kind take turns, and a last one is smaller."""


class Engine:
    """Computes iterations. Keeps only the number of updates that fit into the device's memory together.

        minimise over x, l:  D = |LU(w_b; x, l) - u|_1, or another `disparity`

    by Adam with a schedule of the rate. On CUDA an iteration of a group is one graph (docs/decisions/0048).
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    def __init__(
        self, network: Network, like: LocalSteps, settings: InversionSettings, graphs: Graphs | None = None
    ) -> None:
        """graphs: of the device; None for those of CUDA, and none on the CPU."""
        self._network = network
        self._like = like
        self._settings = settings
        self._loss = LABEL_LOSSES[settings.label_loss]
        self.together = settings.batch_clients
        self._iteration = Iteration(network, like, settings)
        self._loaded: list[EagerIterations] = []
        self._graphs = graphs

    def iterate(self, inversions: Sequence[Inversion]) -> None:
        """Compute one iteration of each; all are of one kind and not over.

        Halves `together` while the device's memory is too small. Raises OutOfMemoryError if it is too small for one.
        """
        assert len({inversion.kind for inversion in inversions}) == 1, "of several kinds"
        start = 0
        while start < len(inversions):
            group = inversions[start : start + self.together]
            try:
                self._iterate(group)
            except torch.OutOfMemoryError:
                self._release_all()
                if self.together == 1:
                    raise
                self.together = max(1, min(self.together, len(group)) // 2)
                continue
            start += len(group)

    def release(self, inversions: Sequence[Inversion]) -> None:
        """Free the memory of these inversions here; they keep their state."""
        for loaded in self._loaded:
            if any(one in loaded.group for one in inversions):
                loaded.release()

    def _release_all(self) -> None:
        for loaded in self._loaded:
            loaded.release()
        self._loaded = []

    def _iterate(self, group: Sequence[Inversion]) -> None:
        self._iterations(group).advance()
        for one in group:
            if one.done in one.loss_checkpoints:
                one.kept[one.done] = one.now

    def _iterations(self, group: Sequence[Inversion]) -> EagerIterations:
        """The iterations of exactly these inversions, used last of all."""
        loaded = next((one for one in self._loaded if one.holds(group)), None)
        if loaded is None:
            self.release(group)
            loaded = self._free(group)
            loaded.release()
            loaded.load(group)
        self._loaded = [*(one for one in self._loaded if one is not loaded), loaded]
        return loaded

    def _free(self, group: Sequence[Inversion]) -> EagerIterations:
        """Iterations to load this group into: idle ones, else new ones, else those that were not used for longest."""
        graphs = self._graphs_of(group[0].target.base[0].device)
        fitting = [one for one in self._loaded if one.fits(group)]
        idle = [one for one in fitting if not one.group]
        is_full = len(self._loaded) >= (1 if graphs is None else GRAPHS_MAX)
        if idle or (fitting and is_full):
            return (idle or fitting)[0]
        if is_full:
            self._loaded.pop(0).release()
        if graphs is None:
            return EagerIterations(self._iteration, self._rate)
        return CapturedIterations(self._iteration, self._rate, graphs)

    def _graphs_of(self, device: torch.device) -> Graphs | None:
        if self._graphs is None and device.type == "cuda":
            self._graphs = CudaGraphs(device)
        return self._graphs

    def _rate(self, one: Inversion, done: int) -> float:
        settings = self._settings
        if settings.schedule == "steps":
            ends = [int(one.iterations / divisor) for divisor in (2.667, 1.6, 1.142)]
            return float(settings.learning_rate * 0.1 ** sum(done >= end for end in ends))
        return settings.learning_rate

    def local_update(self, reconstruction: Reconstruction, start: Parts, steps: int, rate: float) -> Tensor:
        """LU(w; x, l) of a reconstruction, [d], in parameter units. start: w. steps, rate: kg, eta_gi."""
        device = start[0].device
        with self._network.in_use(), torch.no_grad():
            update = local_update(
                self._network,
                start,
                reconstruction.inputs_rX.to(device),
                reconstruction.labels_rC.to(device),
                torch.tensor(rate, device=device),
                steps=steps,
                like=self._like,
                loss=self._loss,
            )
        return as_vector(update)
