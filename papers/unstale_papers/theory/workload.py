"""Clients that compute exact or noisy gradients of a problem with a known optimum.

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: d parameters.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.client_state import ClientState
from unstale.training.local import Kind, LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import ClientTask, Workload
from unstale_papers.theory.problems import Problem

_CPU = torch.device("cpu")


class AnalyticWorkload(Workload):
    """Local steps x <- x - eta_l (grad f_i(x) + z), z ~ N(0, noise^2 I), in float64.

    The update is float32, as everywhere. The first model is 0.
    """

    keeps_state = False

    def __init__(self, problem: Problem, *, steps: int | None, noise: float, seed: int) -> None:
        """steps: of a task; None to send the gradient at the base model. noise: standard deviation of each number of a
        gradient. seed: of the run.
        """
        module = nn.Module()
        module.register_parameter("x", nn.Parameter(torch.zeros(problem.dimension)))
        self.model = FlatModel(module, _CPU)
        self.client_state = ClientState()
        self._problem = problem
        self._kind: Kind = "gradient" if steps is None else "delta"
        self._steps = steps or 1
        self._noise = noise
        self._seed = seed

    @override
    def train(self, task: ClientTask) -> LocalUpdate:
        base_d = task.base_d.numpy().astype("float64")
        noise_sd = None
        if self._noise:
            rng = stream(self._seed, Stream.BATCHES, task.client_id, task.number)
            noise_sd = self._noise * rng.standard_normal((self._steps, len(base_d)))
        x_d = base_d
        for step in range(self._steps):
            gradient_d = self._problem.gradient(task.client_id, x_d)
            gradient_d = gradient_d if noise_sd is None else gradient_d + noise_sd[step]
            x_d = x_d - task.learning_rate * gradient_d
        vector_d = gradient_d if self._kind == "gradient" else base_d - x_d
        return LocalUpdate(
            vector_d=torch.from_numpy(vector_d.astype("float32")),
            kind=self._kind,
            num_examples=1,
            batch_examples=1,
            steps=self._steps,
            loss=self._problem.loss(task.client_id, base_d),
            learning_rate=task.learning_rate,
        )

    @override
    def evaluate(self, client_id: int, base_d: Tensor, buffers_b: Tensor | None = None) -> Measured | None:
        return None

    @override
    def steps_of(self, client_id: int) -> int:
        return self._steps


def context_of(settings: Settings, problem: Problem, noise: float) -> TrainingContext:
    """What a simulation of these settings trains: the problem in place of a data set and a model; on the CPU."""
    torch.set_num_threads(settings.threads)
    training = settings.training
    steps = None if training.name == "gradient" else training.steps
    workload = AnalyticWorkload(problem, steps=steps, noise=noise, seed=settings.seed)
    return TrainingContext(
        client_data=None, test_data=None, objective=None, model=workload.model, device=_CPU, workload=workload
    )
