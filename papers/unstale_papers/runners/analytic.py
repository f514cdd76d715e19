"""A run of the simulator, with its real policies, on a problem with a known optimum.

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: R rounds, d parameters.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from unstale.config.settings import Settings
from unstale.coordinator import actions, events
from unstale.learner.learner import RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.simulator.assemble import simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.measured import Measured
from unstale_papers.runners.run import refusals
from unstale_papers.theory.problems import Floats, Problem, draw
from unstale_papers.theory.workload import context_of

POINTS_MAX = 60  # of a curve


@dataclass(kw_only=True)
class Trajectory(Watcher):
    """The models and stalenesses of a run. models: of each round, [d]. staleness: of each round's updates, rounds.
    refused: updates that did not count, by reason of the wire contract.
    """

    problem: Problem
    models: list[Floats] = field(default_factory=list)
    staleness: list[tuple[int, ...]] = field(default_factory=list)
    on_round: Callable[[int], None] = lambda _: None
    refused: Counter[str] = field(default_factory=Counter)

    def acted(self, _: events.Event, acts: Iterable[actions.Action]) -> None:
        """Count refused updates in the coordinator's actions."""
        self.refused.update(refusals(acts))

    @property
    def notes(self) -> dict[str, Any]:
        """What a page says of the run, as entries of `Record.found`: refused updates, if any."""
        return {"refused": dict(self.refused)} if self.refused else {}

    @override
    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        self.models.append(result.sent.model_d.numpy().astype(np.float64))
        self.staleness.append(result.staleness)
        self.on_round(result.version)

    @override
    def evaluated(self, version: int, evaluation: Measured, at_s: float) -> None:
        """Nothing: the loss is known in closed form."""

    @property
    def squared_distances_R(self) -> Floats:
        """|x - x*|^2 after each round."""
        return np.asarray(np.square(np.stack(self.models) - self.problem.optimum_d).sum(axis=1))

    @property
    def squared_gradients_R(self) -> Floats:
        """|grad f(x)|^2 before each round."""
        before = [np.zeros(self.problem.dimension), *self.models[:-1]]
        return np.array([float(gradient_d @ gradient_d) for gradient_d in map(self.problem.mean_gradient, before)])


def run(settings: Settings, options: Mapping[str, Any], on_progress: Callable[[float], None]) -> Trajectory:
    """Simulate. options: of `problems.draw`, and `noise`, of each number of a gradient. Raises UserError."""
    problem = draw(options, settings.clients, settings.seed)
    trajectory = Trajectory(problem=problem, on_round=lambda version: on_progress(version / settings.rounds))
    context = context_of(settings, problem, options.get("noise", 0.0))
    simulation(
        settings, on_progress=lambda _: None, observe=trajectory.acted, context=context, watcher=trajectory
    ).run()
    return trajectory


def curve(values_R: Floats, along: str = "round") -> dict[str, Any]:
    """A curve of a record, at rounds whose logarithms are about equally far apart. values_R: after each round."""
    rounds = np.unique(np.geomspace(1, len(values_R), POINTS_MAX).round().astype(int))
    return {"x": along, "points": [[int(number), float(values_R[number - 1])] for number in rounds]}


def slope(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float | None:
    """The slope of the line of least squares; None for fewer than two different x, and for y that are not finite."""
    if len(set(np.asarray(x).tolist())) < 2 or not np.isfinite(y).all():
        return None
    return float(np.polyfit(x, y, 1)[0])
