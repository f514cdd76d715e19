"""A simulation out of a configuration."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

from unstale.config import build
from unstale.config.build import CompensatorOf
from unstale.config.compensation import compensator
from unstale.config.metrics import main_metric, target
from unstale.config.scenario import client_info, conditions, read
from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.coordinator.actions import Observer
from unstale.coordinator.machine import Coordinator
from unstale.learner.learner import Learner
from unstale.metrics.progress import Progress
from unstale.server import admission
from unstale.server.client_limits import ClientLimits
from unstale.simulator.backends.choose import choose
from unstale.simulator.oracle_updates import OracleUpdates
from unstale.simulator.parts import Clients, Parts, Times
from unstale.simulator.recording import SimulationRecorder
from unstale.simulator.simulated_client import Relay, may_lose
from unstale.simulator.simulation import Simulation
from unstale.simulator.synchronous_compute import Watcher
from unstale.toxics.scenario import Conditions
from unstale.training.measured import MainMetric
from unstale_proto import encodings

PLAIN = "exponential"
"""The ready scenario whose device a simulated client has where the run's scenario gives it none."""


def simulation(
    settings: Settings,
    *,
    on_progress: Callable[[Progress], None],
    observe: Observer | None = None,
    relay: Relay | None = None,
    record_in: Path | None = None,
    keep_updates: bool = True,
    compensator_of: CompensatorOf = compensator,
    context: TrainingContext | None = None,
    watcher: Watcher | None = None,
) -> Simulation:
    """Build a simulation.

    Args:
        settings: Of the run.
        on_progress: As in `Simulation`.
        observe: As in `Simulation`.
        relay: As in `Simulation`.
        record_in: New directory of the recorded run, None to record nothing.
        keep_updates: Record the vectors of the updates, too, without which `unstale replay` cannot compute the run.
        compensator_of: Makes the compensator; by default the one that the settings name.
        context: Parts that the settings describe, made before; None to make them here.
        watcher: As in `Simulation`.

    Raises:
        UserError: The settings cannot be used.
    """
    context = training_context(settings) if context is None else context
    under = _conditions(settings)
    coordination = build.coordinator_settings(settings, under)
    if not any(may_lose(applied.toxic) for applied in under.toxics):
        coordination = replace(coordination, lease_s=inf)  # no client can fall silent
    backend = choose(settings, context, coordination.round_size_max)
    learner = build.run_components(
        settings,
        compensator_of,
        workspace=context,
        coordinator=coordination,
        fresh_update=OracleUpdates(backend, settings.clients, settings.client_settings).of,
        keep_versions=True,
    ).learner
    coordinator = Coordinator(coordination)
    main = main_metric(settings, context.main)
    recorder = None
    if record_in is not None:
        recorder = SimulationRecorder.begin(record_in, settings, coordinator, main, keep_updates=keep_updates)
    clients = Clients(
        backend=backend,
        steps_of=context.workload.steps_of,
        conditions=under,
        encoding=encodings.plan(**settings.encoding.model_dump(), dimension=context.model.dimension),
        evaluate_every=settings.evaluate_clients_every,
        settings=settings.client_settings,
        names_accepted_task=settings.is_app,
    )
    return Simulation(
        _parts(settings, context, coordinator, learner, clients, main),
        on_progress=on_progress,
        observe=observe,
        relay=relay,
        recorder=recorder,
        watcher=watcher,
    )


def _parts(
    settings: Settings,
    context: TrainingContext,
    coordinator: Coordinator,
    learner: Learner,
    clients: Clients,
    main: MainMetric,
) -> Parts:
    late = coordinator.settings.stale_rounds_max
    return Parts(
        coordinator=coordinator,
        learner=learner,
        staging=build.staging(coordinator.settings, learner.row_numbers, context.device),
        clients=clients,
        times=Times(
            heartbeat_s=settings.server.heartbeat_s,
            lease_s=settings.server.lease_s,
            task_timeout_s=settings.server.task_timeout_s,
        ),
        evaluate=build.evaluation(context),
        save=build.saver(settings.save_model, settings.model.name, context.model),
        admission=admission.configured(settings, learner, build.examples_of(settings, context.client_data), late=late),
        client_limits=_client_limits(settings),
        main=main,
        target=target(settings),
    )


def _client_limits(settings: Settings) -> ClientLimits:
    """Quarantine without rate limits: messages of clients that no toxic touches are not made."""
    return ClientLimits(quarantine_after=settings.server.quarantine_after, quarantine_s=settings.server.quarantine_s)


def _conditions(settings: Settings) -> Conditions:
    """Those of the run's scenario. In virtual time something has to take time: for clients without a device the one of
    `PLAIN`.
    """
    chosen, plain = settings.scenario, read(PLAIN)
    if chosen.name is not None:
        conditions(settings)  # says where a mistake is
        plain = plain.model_copy(update={"groups": (*plain.groups, *read(chosen.name).groups)})
    return plain.scaled(chosen.time_scale).settled(client_info(settings), settings.seed)
