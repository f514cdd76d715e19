"""The parts of a run, new or as its last server left them."""

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unstale.config import build
from unstale.config.compensation import compensator
from unstale.config.settings import Settings
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.phase import Phase
from unstale.coordinator.settings import CoordinatorSettings
from unstale.journal.journal import Journal
from unstale.journal.partial_files import PartialFiles
from unstale.journal.recovery import Recovered, Recovery
from unstale.journal.resumption import check_not_given_up, excluded
from unstale.journal.rundir import RunDirectory
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.net.clock import RunClock, now_s
from unstale.server import admission
from unstale.server.admission import Admission
from unstale.server.background_writer import BackgroundWriter
from unstale.server.commands import CheckpointCommand
from unstale.server.compute import Keep, Save, frames_of
from unstale.server.malloc import limit_retained_memory
from unstale.server.state import RunState
from unstale.server.welcome import welcome
from unstale.training.datasets import Dataset
from unstale.training.evaluate import Evaluation
from unstale.workers.inversion_executor import connect
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32, Encoding
from unstale_proto.messages import Welcome

log = logging.getLogger("unstale.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts of a run.

    journal: None for one that leaves nothing behind. recovered: where it was taken up, None for a new one. clock: of
    the run. dimension: d. admission: judges what updates claim. save_model: writes a version to the file that the
    settings name.
    """

    coordinator: Coordinator
    learner: Learner
    staging: Staging
    evaluate: Callable[[Version], Evaluation]
    journal: Journal | None
    recovered: Recovered | None
    clock: RunClock
    welcome: Welcome
    admission: Admission
    dimension: int
    save_model: Callable[[Version, int], None]

    @property
    def state(self) -> RunState:
        """The parts that the server protocol needs, at the version that the run has reached."""
        sent = self._sent
        return RunState(
            coordinator=self.coordinator,
            staging=self.staging,
            admission=self.admission,
            welcome=self.welcome,
            learning_rate=self.learner.learning_rate,
            sent=self.learner.sent,
            frames={number: frames_of(version) for number, version in sent.items()},
            encoded=self._encoded(sent),
            dimension=self.dimension,
            journal=self.journal,
            partial_files=PartialFiles(None if self.journal is None else self.journal.directory.transfers),
        )

    def _encoded(self, sent: Mapping[int, Version]) -> dict[int, Sequence[memoryview]]:
        encoding = self.encoding
        if encoding is None:
            return {}
        return {number: frames_of(version, encoding) for number, version in sent.items()}

    @property
    def encoding(self) -> Encoding | None:
        """Of its models; None for float32."""
        plan = self.welcome.encoding
        if plan is None or plan.models == FLOAT32:
            return None
        return encodings.of_models(plan, self.dimension, self.learner.row_numbers - self.dimension)

    @property
    def _sent(self) -> dict[int, Version]:
        """Versions that tasks may carry: the current one, and those before it that a stale client may be given."""
        now = self.learner.version
        late = max(self.coordinator.settings.stale_rounds.values(), default=0)
        past = {version: self.learner.base(version) for version in range(max(0, now - late), now)}
        return {**past, now: self.learner.sent}

    @property
    def save(self) -> Save | None:
        """Writes a checkpoint; None without a journal."""
        return None if self.journal is None else partial(_write_checkpoint, self.journal)

    @property
    def keep(self) -> Keep | None:
        """Stores the results of the compensator for a version; None without a journal."""
        return None if self.journal is None else self.journal.keep_made

    def close(self) -> None:
        """Close the journal."""
        if self.journal is not None:
            self.journal.close()


def prepare(settings: Settings) -> Run:
    """Make a new run, or resume one. Raises UserError where the settings or the directory do not allow it."""
    limit_retained_memory()
    parts = build.run_components(settings, partial(compensator, clock=now_s, connect=connect))
    device, dataset, model, coordinator_settings, learner = (
        parts.device,
        parts.dataset,
        parts.model,
        parts.coordinator,
        parts.learner,
    )
    save_model = build.saver(settings, model)
    model.let_go()
    admits = admission.configured(settings, learner, _examples_of(settings, dataset))
    evaluate = build.evaluation(settings, model, dataset, device)
    welcome_message = welcome(settings, model, extra=learner.sent.extra_d is not None, labels=dataset.labels_digest)
    with ExitStack() as stack:
        journal = open_journal(settings)
        recovered = None
        if journal is not None:
            stack.callback(journal.close)
            check_not_given_up(journal.database, journal.directory.path)
            coordinator_settings = replace(coordinator_settings, excluded=excluded(journal.database))
        coordinator = Coordinator(coordinator_settings)
        staging = _staging(settings, coordinator_settings, learner, journal, device)
        if journal is not None:
            welcome_message = welcome_message.model_copy(update={"run_id": journal.run_id(welcome_message.run_id)})
            if not journal.directory.is_new:
                recovery = Recovery(
                    journal, coordinator=coordinator, learner=learner, staging=staging, evaluate=evaluate
                )
                recovered = recovery.run()
                _resume_admission(admits, recovered, journal, coordinator.version)
                _mention(recovered, journal, coordinator)
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
    )


def _examples_of(settings: Settings, data: Dataset) -> Callable[[int], int]:
    """How many training examples each client holds."""
    if settings.server.num_examples_max != "partition":
        return lambda _: 0  # nobody asks
    counts = array("q", map(len, build.client_partitions(settings, data)))
    return counts.__getitem__


def _resume_admission(admits: Admission, recovered: Recovered, journal: Journal, version: int) -> None:
    """Bring the admission to where it was, by its state in the checkpoint and the updates behind that.

    The checkpoint of a rolled-back run has no such state: all updates that the run still has make it.
    """
    if recovered.admission is not None:
        admits.bounds.load_state_dict(recovered.admission)
    for update in journal.database.updates_after(recovered.checkpoint_seq if recovered.admission is not None else 0):
        admits.bounds.replay(update.staged.client_id, update.staged.base_version, update.norms, update.reason)
    for row in journal.database.rounds():
        if row.version <= version:
            admits.published(row)


def _staging(
    settings: Settings,
    coordinator_settings: CoordinatorSettings,
    learner: Learner,
    journal: Journal | None,
    device: torch.device,
) -> Staging:
    """In memory; or on disk, where rows would take too much of it and the policy can read them one by one."""
    most_bytes = (
        4 * learner.row_numbers * (coordinator_settings.unaggregated_max + 2 * coordinator_settings.round_size_max)
    )
    if journal is None or not learner.column_wise or most_bytes <= settings.run.rows_memory_bytes_max:
        return build.staging(coordinator_settings, learner.row_numbers, device)
    return journal.spill(learner.row_numbers)


def open_journal(settings: Settings) -> Journal | None:
    """The journal of a run that is stored; None for others."""
    if settings.run.durability == "off":
        return None
    with ExitStack() as stack:
        directory = RunDirectory.open(Path(settings.run.directory), settings)
        stack.callback(directory.close)
        journal = Journal(directory, settings.run, clock=now_s, writer=BackgroundWriter())
        stack.pop_all()
    return journal


def _write_checkpoint(journal: Journal, command: CheckpointCommand, learner: Mapping[str, Any]) -> tuple[str, int]:
    return journal.write_checkpoint(command.version, command.seq, learner, command.coordinator, command.admission)


def _mention(recovered: Recovered, journal: Journal, coordinator: Coordinator) -> None:
    where = journal.directory.path
    if coordinator.phase is Phase.FINISHED:
        return
    log.info(
        "going on with the run in %s: version %d, %d updates waiting (%d records read, %d rounds computed again)",
        where,
        coordinator.version,
        len(coordinator.pending),
        recovered.events,
        recovered.rounds,
    )
