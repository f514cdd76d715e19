"""Local trainings of several clients as one batch: a step of all of them is one computation on the device.

Legend: K clients, d parameters, X the shape of one example, b examples of a mini-batch, S steps, Y the shape of a
dropout's noise for one example.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from unstale.graphs import Graphs, Work
from unstale.simulator.backends.batched_model import IGNORED, BatchedModel
from unstale.training.examples import Pool
from unstale.training.local import LocalTask
from unstale.training.trainings import FedProx, Gradient, Sgd

CLIENTS_STEP = 8  # between the numbers of clients of two graphs; a smaller one makes more graphs
WARM_UP = 2  # loops of a number of clients before its capture
WHOLE_STEPS_MAX = 32  # of a local training that is one graph; a graph of more takes long to capture


@dataclass(slots=True, kw_only=True)
class Loops:
    """The state of K local trainings."""

    parameters_Kd: Tensor  # the gradient itself after the step of `gradient`
    base_Kd: Tensor | None  # None where no step needs it
    velocity_Kd: Tensor | None  # None without momentum
    losses_K: Tensor  # added up over the steps
    rates_K1: Tensor
    indices_SKb: Tensor  # of the pool; ~index of an example that fills up a mini-batch
    noise: list[Tensor]  # of each noise layer, [S, K, b, *Y]
    step: Tensor  # [1] int64, the next one

    def first(self, count: int, size: int | None = None) -> "Loops":
        """Views of the first clients. size: of mini-batches; None for b."""
        return Loops(
            parameters_Kd=self.parameters_Kd[:count],
            base_Kd=None if self.base_Kd is None else self.base_Kd[:count],
            velocity_Kd=None if self.velocity_Kd is None else self.velocity_Kd[:count],
            losses_K=self.losses_K[:count],
            rates_K1=self.rates_K1[:count],
            indices_SKb=self.indices_SKb[:, :count, :size],
            noise=[noise_SKbY[:, :count, :size] for noise_SKbY in self.noise],
            step=self.step,
        )


class EagerLoops:
    """Trains clients step by step, operation by operation."""

    def __init__(self, model: BatchedModel, training: Gradient | Sgd, pool: Pool) -> None:
        self._model = model
        self._training = training
        self._pool = pool
        self._momentum: float = getattr(training, "momentum", 0.0)
        self._mu: float = training.mu if isinstance(training, FedProx) else 0.0

    def train(self, tasks: Sequence[LocalTask], starts: Sequence[int]) -> tuple[Tensor, list[float]]:
        """The vectors [K, d], on the host, and mean losses of the updates.

        tasks: those with more steps first. starts: first row of each client in the pool.
        """
        steps = [len(task.batches) for task in tasks]
        base_Kd = torch.stack([task.base_d for task in tasks]).to(self._pool.device)
        indices_SKb = self._indices(tasks, starts)
        noise = [_stacked(layer, len(tasks[0].batches), indices_SKb.shape[2]) for layer in self._drawn(tasks)]
        self._model.begin()
        loops = self._loaded(tasks, base_Kd, indices_SKb, noise)
        losses_K = torch.empty(len(tasks), device=self._pool.device)
        done, active = 0, len(tasks)
        while done < steps[0]:
            done += self._advance(loops, active, max(len(task.batches[done]) for task in tasks[:active]))
            ended = slice(sum(count > done for count in steps), active)
            self._finish(loops, ended, base_Kd, losses_K)
            active = ended.start
        vectors_Kd = base_Kd.to("cpu", non_blocking=True)  # complete when the losses are
        means_K = losses_K.cpu() / torch.tensor(steps)
        return vectors_Kd, means_K.tolist()

    def step(self, loops: Loops) -> None:
        """One step of each client: the one of `StepTraining`, without a value on the host."""
        indices_Kb = loops.indices_SKb.index_select(0, loops.step)[0]
        rows = torch.maximum(indices_Kb, ~indices_Kb).flatten()
        inputs_KbX = self._pool.inputs.index_select(0, rows).view(*indices_Kb.shape, *self._pool.inputs.shape[1:])
        labels_Kb = self._pool.targets.index_select(0, rows).view(indices_Kb.shape)
        labels_Kb.masked_fill_(indices_Kb < 0, IGNORED)
        noise = [noise_SKbY.index_select(0, loops.step)[0] for noise_SKbY in loops.noise]
        vectors_Kd, losses_K = self._model.gradients(loops.parameters_Kd, inputs_KbX, labels_Kb, noise)
        loops.losses_K.add_(losses_K)
        loops.step.add_(1)
        training = self._training
        if isinstance(training, Gradient):
            loops.parameters_Kd.copy_(vectors_Kd)
            return
        if loops.base_Kd is not None:
            vectors_Kd.add_(loops.parameters_Kd - loops.base_Kd, alpha=self._mu)
        vectors_Kd.add_(loops.parameters_Kd, alpha=training.weight_decay)
        if loops.velocity_Kd is not None:
            vectors_Kd = loops.velocity_Kd.mul_(self._momentum).add_(vectors_Kd)
        loops.parameters_Kd.sub_(loops.rates_K1 * vectors_Kd)

    def _indices(self, tasks: Sequence[LocalTask], starts: Sequence[int]) -> Tensor:
        """[S, K, b] on the host."""
        indices_SKb = np.full((len(tasks[0].batches), *self._shape(tasks)), -1)
        for client, (task, start) in enumerate(zip(tasks, starts, strict=True)):
            indices_SKb[:, client] = ~start  # an example of its own: those of others may not be there yet
            for step, batch in enumerate(task.batches):
                np.add(batch.numpy(), start, out=indices_SKb[step, client, : len(batch)])
        return torch.from_numpy(indices_SKb)

    def _drawn(self, tasks: Sequence[LocalTask]) -> list[list[list[Tensor]]]:
        """Noise by layer, task and step."""
        if not self._model.noise_layers:
            return []
        by_task = [self._model.drawn(task.seed, list(map(len, task.batches))) for task in tasks]
        return [list(of_layer) for of_layer in zip(*by_task, strict=True)]

    def _finish(self, loops: Loops, ended: slice, base_Kd: Tensor, losses_K: Tensor) -> None:
        """Put the results of clients in place of their base models."""
        if ended.start == ended.stop:
            return
        if isinstance(self._training, Gradient):
            base_Kd[ended].copy_(loops.parameters_Kd[ended])
        else:
            base_Kd[ended].sub_(loops.parameters_Kd[ended])
        losses_K[ended].copy_(loops.losses_K[ended])

    # Subclasses override these.

    def _shape(self, tasks: Sequence[LocalTask]) -> tuple[int, int]:
        """K and b of the indices."""
        return len(tasks), max(len(batch) for task in tasks for batch in task.batches)

    def _loaded(
        self, tasks: Sequence[LocalTask], base_Kd: Tensor, indices_SKb: Tensor, noise: Sequence[Tensor]
    ) -> Loops:
        device = base_Kd.device
        return Loops(
            parameters_Kd=base_Kd.clone(),
            base_Kd=base_Kd if self._mu else None,
            velocity_Kd=torch.zeros_like(base_Kd) if self._momentum else None,
            losses_K=torch.zeros(len(tasks), device=device),
            rates_K1=torch.tensor([[task.learning_rate] for task in tasks], device=device),
            indices_SKb=indices_SKb.to(device),
            noise=list(noise),
            step=torch.zeros(1, dtype=torch.int64, device=device),
        )

    def _advance(self, loops: Loops, active: int, size: int) -> int:
        """Compute steps of the first clients; the number of steps. size: of the largest mini-batch of the next step."""
        self.step(loops.first(active, size))
        return 1


class CapturedLoops(EagerLoops):
    """Trains clients by graphs over buffers that keep their addresses: for 1, 2, 4, 8, 16, 24, ... clients.

    A graph is a whole local training where all clients have as many steps, else one step. The first trainings of a
    number of clients are eager, and all are where no graph can be captured.
    """

    def __init__(
        self,
        model: BatchedModel,
        training: Gradient | Sgd,
        pool: Pool,
        graphs: Graphs,
        *,
        clients: int,
        steps: Collection[int],
        size: int,
    ) -> None:
        """clients: most of them at a time. steps: of a task of any client. size: of the largest mini-batch."""
        super().__init__(model, training, pool)
        self._graphs = graphs
        self._clients, self._size = clients, size
        whole = max(steps) if len(steps) == 1 else 1
        self._steps_of_graph = whole if whole <= WHOLE_STEPS_MAX else 1
        self._buffers = self._allocated(max(steps))
        self._warmed_up: Counter[int] = Counter()
        self._replays: dict[int, Work] = {}

    def _allocated(self, steps: int) -> Loops:
        clients, size, like_d = self._clients, self._size, self._model.parameters_d
        zeros_Kd = partial(like_d.new_zeros, clients, len(like_d))
        return Loops(
            parameters_Kd=zeros_Kd(),
            base_Kd=zeros_Kd() if self._mu else None,
            velocity_Kd=zeros_Kd() if self._momentum else None,
            losses_K=like_d.new_zeros(clients),
            rates_K1=like_d.new_zeros(clients, 1),
            indices_SKb=like_d.new_full((steps, clients, size), -1, dtype=torch.int64),
            noise=[like_d.new_zeros(steps, clients, size, *layer.shape) for layer in self._model.noise_layers],
            step=like_d.new_zeros(1, dtype=torch.int64),
        )

    @override
    def _shape(self, tasks: Sequence[LocalTask]) -> tuple[int, int]:
        return self._clients, self._size

    @override
    def _loaded(
        self, tasks: Sequence[LocalTask], base_Kd: Tensor, indices_SKb: Tensor, noise: Sequence[Tensor]
    ) -> Loops:
        buffers, count, steps = self._buffers, len(tasks), len(indices_SKb)
        rates = [task.learning_rate for task in tasks] + [0.0] * (self._clients - count)
        self._graphs.upload(buffers.rates_K1, torch.tensor(rates).unsqueeze(1))
        self._graphs.upload(buffers.indices_SKb[:steps], indices_SKb)
        buffers.parameters_Kd[:count].copy_(base_Kd)
        if buffers.base_Kd is not None:
            buffers.base_Kd[:count].copy_(base_Kd)
        for buffer, noise_SKbY in zip(buffers.noise, noise, strict=True):
            buffer[:steps, :count].copy_(noise_SKbY)
        for zero in (buffers.velocity_Kd, buffers.losses_K, buffers.step):
            if zero is not None:
                zero.zero_()
        return buffers

    @override
    def _advance(self, loops: Loops, active: int, size: int) -> int:
        few = 1 << (active - 1).bit_length()
        count = min(self._clients, few if few <= CLIENTS_STEP else -(-active // CLIENTS_STEP) * CLIENTS_STEP)
        replay = self._replays.get(count) or self._captured(loops, count)
        if replay is not None:
            replay()
        else:
            self._warmed_up[count] += 1
            self._graphs.warm_up(partial(self._steps, loops.first(count)))
        return self._steps_of_graph

    def _captured(self, loops: Loops, count: int) -> Work | None:
        """The graph of so many clients; None for an eager training."""
        if self._warmed_up[count] < WARM_UP:
            return None
        replay = self._graphs.capture(partial(self._steps, loops.first(count)))
        if replay is not None:
            self._replays[count] = replay
        return replay

    def _steps(self, loops: Loops) -> None:
        for _ in range(self._steps_of_graph):
            self.step(loops)


def _stacked(drawn: Sequence[Sequence[Tensor]], steps: int, size: int) -> Tensor:
    """Noise by client and step as one tensor, [S, K, b, *Y]: zeros where a client has no example."""
    missing = torch.zeros_like(drawn[0][0][:0])
    pieces = [of_client[step] if step < len(of_client) else missing for step in range(steps) for of_client in drawn]
    filled = [
        piece if len(piece) == size else torch.cat([piece, piece.new_zeros(size - len(piece), *piece.shape[1:])])
        for piece in pieces
    ]
    return torch.stack(filled).view(steps, len(drawn), *filled[0].shape)
