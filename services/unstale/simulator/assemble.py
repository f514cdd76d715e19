"""A simulation out of a configuration."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from unstale.config import parts
from unstale.config.settings import Settings
from unstale.config.workplace import workplace
from unstale.coordinator.machine import Coordinator
from unstale.metrics.progress import Progress
from unstale.simulator import latency
from unstale.simulator.latency import Latency
from unstale.simulator.simulation import Observer, Parts, Relay, Simulation, as_it_is


def simulation(
    settings: Settings,
    *,
    on_progress: Callable[[Progress], None],
    latency_of_tasks: Latency | None = None,
    observe: Observer | None = None,
    relay: Relay = as_it_is,
) -> Simulation:
    """Build everything that a run needs. Raises UserError for what the user can mend.

    latency_of_tasks: instead of the configured one. The others: as in `Simulation`.
    """
    place = workplace(settings)
    parts.check_partition(settings, place.dataset)
    model = place.model
    coordinator_settings = replace(parts.coordinator_settings(settings), lease_s=inf)
    learner = parts.learner(settings, model, place.device, keep_versions=True)
    chosen = settings.simulation.latency
    return Simulation(
        Parts(
            coordinator=Coordinator(coordinator_settings),
            learner=learner,
            staging=parts.staging(coordinator_settings, learner.row_numbers, place.device),
            trainer=place.trainer,
            evaluate=parts.evaluation(settings, model, place.dataset, place.device),
            save=parts.saver(settings, model),
            clients=settings.clients,
            rounds=settings.rounds,
            evaluate_clients_every=settings.evaluate_clients_every,
        ),
        latency_of_tasks or latency.create(chosen.name, seed=settings.seed, mean_s=chosen.mean_s),
        on_progress=on_progress,
        observe=observe,
        relay=relay,
    )
