"""The parts of a run, new or as its last server left them."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unstale.config import build
from unstale.config.compensation import check_cluster, compensator
from unstale.config.metrics import main_metric
from unstale.config.settings import Settings
from unstale.config.workspace import Workspace
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.coordinator.settings import CoordinatorSettings
from unstale.journal import main_metric as recorded_metric
from unstale.journal.journal import Journal
from unstale.journal.recovery import Recovered, Recovery
from unstale.journal.resumption import check_not_given_up, excluded
from unstale.journal.rundir import RunDirectory
from unstale.learner.device import cores
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.server import admission
from unstale.server.admission import Admission
from unstale.server.background_writer import WRITER_CORES, BackgroundWriter
from unstale.server.commands import CheckpointCommand
from unstale.server.compute import Save, frames_of
from unstale.server.malloc import limit_retained_memory
from unstale.server.state import RunState
from unstale.server.welcome import welcome
from unstale.training.measured import MainMetric, Measured
from unstale.workers.inversion_executor import connect
from unstale_client.net.clock import RunClock, now_s
from unstale_client.partial_files import PartialFiles
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.messages import Welcome

log = logging.getLogger("unstale.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts of a run. journal: None for one that leaves nothing behind. recovered: None for a new one."""

    coordinator: Coordinator
    learner: Learner
    staging: Staging
    evaluate: Callable[[Version], Measured]
    journal: Journal | None
    recovered: Recovered | None
    clock: RunClock
    welcome: Welcome
    admission: Admission
    dimension: int  # d
    save_model: Callable[[Version, int], None]  # writes a version to the file that the settings name
    main: MainMetric

    @property
    def state(self) -> RunState:
        """The parts that the server protocol needs, at the version that the run has reached."""
        now, encoding = self.learner.version, self.encoding
        first = max(0, now - self.coordinator.settings.stale_rounds_max)
        sent = {version: self.learner.base(version) for version in range(first, now)} | {now: self.learner.sent}
        encoded = {} if encoding is None else {number: frames_of(version, encoding) for number, version in sent.items()}
        return RunState(
            coordinator=self.coordinator,
            staging=self.staging,
            admission=self.admission,
            welcome=self.welcome,
            learning_rate=self.learner.learning_rate,
            sent=self.learner.sent,
            frames={number: frames_of(version) for number, version in sent.items()},
            encoded=encoded,
            dimension=self.dimension,
            journal=self.journal,
            partial_files=PartialFiles(None if self.journal is None else self.journal.directory.transfers),
        )

    @property
    def encoding(self) -> Encoding | None:
        """Of its models; None for float32."""
        plan = self.welcome.encoding
        if plan is None or plan.models == FLOAT32:
            return None
        return encodings.of_models(plan, self.dimension, self.learner.row_numbers - self.dimension)

    @property
    def save(self) -> Save | None:
        """Writes a checkpoint; None without a journal."""
        return None if self.journal is None else partial(_write_checkpoint, self.journal)


def prepare(settings: Settings, workspace: Workspace | None = None) -> Run:
    """Make a new run, or resume one. workspace: of the settings, if it was made before.

    Raises UserError where the settings or the directory do not allow it.
    """
    limit_retained_memory()
    check_cluster(settings)
    parts = build.run_components(settings, partial(compensator, clock=now_s, connect=connect), workspace=workspace)
    workspace, coordinator_settings, learner = parts.workspace, parts.coordinator, parts.learner
    model = workspace.model
    save_model = build.saver(settings.save_model, settings.model.name, model)
    model.release()
    admits = admission.configured(
        settings,
        learner,
        build.examples_of(settings, workspace.client_data),
        late=coordinator_settings.stale_rounds_max,
    )
    evaluate = build.evaluation(workspace)
    labels = None if workspace.client_data is None else workspace.data.labels_digest
    welcome_message = welcome(settings, model, extra=learner.sent.extra_d is not None, labels=labels)
    main = main_metric(settings, workspace.main)
    with ExitStack() as stack:
        journal = open_journal(settings)
        recovered = None
        if journal is not None:
            stack.callback(journal.close)
            check_not_given_up(journal.database, journal.directory.path)
            recorded_metric.record(journal.database, settings, main)
            coordinator_settings = replace(coordinator_settings, excluded=excluded(journal.database))
        coordinator = Coordinator(coordinator_settings)
        staging = _staging(settings, coordinator_settings, learner, journal, workspace.device)
        if journal is not None:
            welcome_message = welcome_message.model_copy(update={"run_id": journal.run_id(welcome_message.run_id)})
            if not journal.directory.is_new:
                recovery = Recovery(
                    journal, coordinator=coordinator, learner=learner, staging=staging, evaluate=evaluate
                )
                recovered = recovery.run()
                _resume_admission(admits, recovered, journal, coordinator.version)
                _log_recovery(recovered, journal, coordinator)
        stack.pop_all()
    return Run(
        coordinator=coordinator,
        learner=learner,
        staging=staging,
        evaluate=evaluate,
        journal=journal,
        recovered=recovered,
        clock=RunClock(0.0 if recovered is None else recovered.at_s),
        welcome=welcome_message,
        admission=admits,
        dimension=model.dimension,
        save_model=save_model,
        main=main,
    )


def _resume_admission(admits: Admission, recovered: Recovered, journal: Journal, version: int) -> None:
    """Restore the admission: from the checkpoint and later updates, or all updates of a run that was rolled back."""
    if recovered.admission is not None:
        admits.bounds.load_state_dict(recovered.admission)
    for update in journal.database.updates_after(recovered.checkpoint_seq if recovered.admission is not None else 0):
        admits.bounds.replay(update.staged.client_id, update.staged.base_version, update.norms, update.reason)
    for row in journal.database.rounds():
        if row.version <= version:
            admits.published(row)


def _staging(
    settings: Settings, coordinator: CoordinatorSettings, learner: Learner, journal: Journal | None, where: torch.device
) -> Staging:
    """In memory; or on disk, where rows would take too much of it and the policy can read them one by one."""
    most_bytes = 4 * learner.row_numbers * (coordinator.unaggregated_max + 2 * coordinator.round_size_max)
    if journal is None or not learner.column_wise or most_bytes <= settings.run.rows_memory_bytes_max:
        return build.staging(coordinator, learner.row_numbers, where)
    return journal.spill(learner.row_numbers)


def open_journal(settings: Settings) -> Journal | None:
    """The journal of a run that is stored; None for others."""
    if settings.run.durability == "off":
        return None
    directory = RunDirectory.open(Path(settings.run.directory), settings)
    try:
        # With fewer cores the thread takes turns with the one that hands it the rows: 0.88 of the time without it.
        writer = BackgroundWriter() if cores() >= WRITER_CORES else None
        return Journal(directory, settings.run, clock=now_s, writer=writer)
    except BaseException:
        directory.close()
        raise


def _write_checkpoint(journal: Journal, command: CheckpointCommand, learner: Mapping[str, Any]) -> tuple[str, int]:
    return journal.write_checkpoint(command.version, command.seq, learner, command.coordinator, command.admission)


def _log_recovery(recovered: Recovered, journal: Journal, coordinator: Coordinator) -> None:
    if coordinator.phase is not Phase.FINISHED:
        log.info(
            "going on with the run in %s: version %d, %d updates waiting (%d records read, %d rounds computed again)",
            journal.directory.path,
            coordinator.version,
            len(coordinator.pending),
            recovered.events,
            recovered.rounds,
        )
