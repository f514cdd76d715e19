"""A simulation out of a configuration."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from unstale.compensators import Compensator, FreshUpdate
from unstale.config import build
from unstale.config.compensation import Connect, compensator
from unstale.config.scenario import client_info, conditions, read
from unstale.config.settings import Settings
from unstale.config.training_context import TrainingContext, training_context
from unstale.coordinator.actions import Observer
from unstale.coordinator.machine import Coordinator
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
from unstale_proto import encodings

PLAIN = "exponential"
"""The ready scenario whose device a simulated client has where the run's scenario gives it none."""

CompensatorOf = Callable[[Settings, TrainingContext, FreshUpdate], Compensator[Any] | None]
"""Makes the compensator of a run. What clients would send, were they given the current model, goes with it."""


def configured(
    settings: Settings, context: TrainingContext, fresh_update: FreshUpdate, *, connect: Connect | None = None
) -> Compensator[Any] | None:
    """The one that the settings name; None for none. connect: as in `config.compensation.compensator`."""
    return compensator(
        settings, context.model, context.dataset, context.device, fresh_update=fresh_update, connect=connect
    )


def simulation(
    settings: Settings,
    *,
    on_progress: Callable[[Progress], None],
    observe: Observer | None = None,
    relay: Relay | None = None,
    record_in: Path | None = None,
    compensator_of: CompensatorOf = configured,
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
        compensator_of: Makes the compensator; by default the one that the settings name.
        context: Parts that the settings describe, made before; None to make them here.
        watcher: As in `Simulation`.

    Raises:
        UserError: The settings cannot be used.
    """
    context = training_context(settings) if context is None else context
    build.check_partition(settings, context.dataset)
    model = context.model
    under = _conditions(settings)
    coordination = build.coordinator_settings(settings)
    if not any(may_lose(applied.toxic) for applied in under.toxics):
        coordination = replace(coordination, lease_s=inf)  # nobody falls silent, so nobody need look
    backend = choose(settings, context)
    learner = build.learner(
        settings,
        model,
        context.device,
        compensator=compensator_of(settings, context, OracleUpdates(backend, settings).of),
        keep_versions=True,
    )
    coordinator = Coordinator(coordination)
    recorder = None if record_in is None else SimulationRecorder.begin(record_in, settings, coordinator)
    return Simulation(
        Parts(
            coordinator=coordinator,
            learner=learner,
            staging=build.staging(coordination, learner.row_numbers, context.device),
            clients=Clients(
                backend=backend,
                steps_of=context.trainer.steps_of,
                conditions=under,
                encoding=encodings.plan(**settings.encoding.model_dump(), dimension=model.dimension),
                evaluate_every=settings.evaluate_clients_every,
            ),
            times=Times(
                heartbeat_s=settings.server.heartbeat_s,
                lease_s=settings.server.lease_s,
                task_timeout_s=settings.server.task_timeout_s,
            ),
            evaluate=build.evaluation(settings, model, context.dataset, context.device),
            save=build.saver(settings, model),
            admission=admission.configured(settings, learner, context.trainer.examples_of),
            client_limits=_client_limits(settings),
        ),
        on_progress=on_progress,
        observe=observe,
        relay=relay,
        recorder=recorder,
        watcher=watcher,
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
