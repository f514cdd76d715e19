"""Stale updates and their fresh counterparts, from a run without late clients.

Legend: d parameters, n examples of a client.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor
from typing_extensions import override

from unstale.compensators import StaleUpdate
from unstale.compensators.gradient_inversion import GradientInversion
from unstale.config import build
from unstale.config.compensation import compensator
from unstale.config.scenario import conditions
from unstale.config.settings import ScenarioSettings, Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.errors import UserError
from unstale.learner.learner import RoundResult
from unstale.learner.updates import RoundUpdate
from unstale.learner.versions import Version
from unstale.settings.learning import CompensatorSettings
from unstale.simulator.assemble import simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.training.evaluate import Evaluation
from unstale.training.local import LocalUpdate
from unstale.training.trainer import Trainer
from unstale_papers.runners.run import dataset_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run without staleness. context: trains its clients. versions: the requested ones, by number."""

    settings: Settings
    context: TrainingContext
    versions: dict[int, Version]

    def update(
        self, client_id: int, version: int, *, task: int, staleness: int = 0, of: Trainer | None = None
    ) -> StaleUpdate:
        """A client's update from a version. task: its number, for the draws. staleness: at arrival, rounds.
        of: replaces the run's own trainer, such as one with other data.
        """
        trainer = self.context.trainer if of is None else of
        base, rate = self.versions[version], build.learning_rate(self.settings.training, self.settings.rounds)(version)
        local = trainer.train(client_id, task, base.model_d, rate, buffers_b=base.buffers_b, version=version)
        return StaleUpdate(
            client_id=client_id,
            task_id=task * self.settings.clients + client_id + 1,
            base_version=version,
            staleness=staleness,
            num_examples=local.num_examples,
            local_rate=rate,
            vector_d=moved_by(local) / rate,
            kept_base_d=base.model_d,
        )

    def late(self) -> list[int]:
        """Clients that the scenario makes late, ascending. Raises UserError where there are none."""
        found = sorted(conditions(self.settings).stale_rounds)
        if not found:
            raise UserError(
                f"scenario.name is {self.settings.scenario.name!r}, under which no client is late, expected a scenario "
                "with stale_rounds, such as staleness-40"
            )
        return found

    def late_client(self) -> int:
        """The late client with the most examples; among equals the lowest id."""
        return max(self.late(), key=lambda client_id: (self.held(client_id), -client_id))

    def held(self, client_id: int) -> int:
        """Number n of the client's examples."""
        return len(self.context.trainer.examples(client_id)[1])

    def inverting(self) -> GradientInversion:
        """The compensator that the settings name, in its first state. Raises UserError for one that does not invert."""
        made = compensator(self.settings, self.context)
        if not isinstance(made, GradientInversion):
            raise UserError(
                f"compensator.name is {self.settings.compensator.name!r}, which inverts nothing, expected "
                "gradient-inversion or auto"
            )
        return made


def moved_by(local: LocalUpdate) -> Tensor:
    """u = w_b - w_end, [d], in parameter units; the gradient of one mini-batch is scaled by its learning rate."""
    return local.vector_d if local.kind == "delta" else local.vector_d * local.learning_rate


def played(settings: Settings, versions: Sequence[int]) -> Played:
    """The run of the settings, without late clients and compensation.

    versions: to keep, from 0 to rounds. The last run is cached for the next job of this process. Raises UserError.
    """
    assert all(0 <= version <= settings.rounds for version in versions)
    plain = settings.model_copy(
        update={"scenario": ScenarioSettings(), "compensator": CompensatorSettings(), "evaluate_every": settings.rounds}
    )
    context, found = _played(plain.model_dump_json(), tuple(sorted(set(versions))))
    return Played(settings=settings, context=context, versions=found)


@lru_cache(maxsize=1)
def _played(configuration: str, versions: tuple[int, ...]) -> tuple[TrainingContext, dict[int, Version]]:
    settings = Settings(**json.loads(configuration))
    context = training_context(settings, data=dataset_of(settings.data))
    keeper = _Keeper(versions)
    run = simulation(settings, on_progress=lambda _: None, context=context, watcher=keeper)
    keeper.keep(0, run.sent)
    run.run()
    return context, keeper.kept


class _Keeper(Watcher):
    """Keeps some versions."""

    def __init__(self, versions: Sequence[int]) -> None:
        self._versions = frozenset(versions)
        self.kept: dict[int, Version] = {}

    def keep(self, number: int, version: Version) -> None:
        if number in self._versions:
            self.kept[number] = version

    @override
    def round_applied(self, result: RoundResult, updates: Sequence[RoundUpdate]) -> None:
        self.keep(result.version, result.sent)

    @override
    def evaluated(self, version: int, evaluation: Evaluation, at_s: float) -> None:
        pass
