"""What a run left behind, compared: what the server said, what it stored, and the same arrivals without any crash.

The undisturbed run is computed here: a fresh coordinator handles the recorded events in their order, but for those
that a restart made (`Resumed`), and a fresh learner applies the rounds that it closes. What is stored is read with
SQLite and plain reads of files, not through the journal.

Legend: K updates of a round; d parameters; D numbers of a row.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crash.plan import ROUNDS
from crash.play import FailureError, Played
from support.parts_of_runs import client_task
from unstale import flat, translate
from unstale.config import build, load
from unstale.config.workspace import TrainingContext, training_context
from unstale.coordinator import actions, events
from unstale.coordinator.admission import REMEMBERED_VERDICTS
from unstale.coordinator.machine import Coordinator
from unstale.journal import records
from unstale.journal.rows import EventRow
from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate, write

_UPDATES = """
SELECT seq, at_s, client_id, task_id, base_version, outcome, reason, num_examples, batch_examples, loss, local_rate,
  handle, segment, offset, size_bytes, round, position, staleness FROM updates ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class Found:
    """How much was compared. recomputed: rows that their clients would make again, bit for bit."""

    acks: int
    accepted: int
    recomputed: int


class Books:
    """Of one run. `check` raises FailureError for the first thing that is not as it must be."""

    def __init__(self, played: Played) -> None:
        self._played = played
        self._run = played.folder / "run"
        self._kept = played.folder / "kept"
        self._settings = load(played.folder / "config.yaml")
        with _opened(self._run / "run.db") as stored:
            self._integrity = [line for (line,) in stored.execute("PRAGMA integrity_check")]
            self._events = {row[0]: row for row in stored.execute(_EVENTS)}
            names = [column[0] for column in stored.execute(_UPDATES).description]
            self._updates = [dict(zip(names, row, strict=True)) for row in stored.execute(_UPDATES)]
            self._events |= {row["seq"]: _arrival(row) for row in self._updates}
            self._digests = dict(stored.execute("SELECT version, digest FROM rounds ORDER BY version"))
            self._tasks = {
                task_id: tuple(rest)
                for task_id, *rest in stored.execute("SELECT task_id, client_id, number, version FROM tasks")
            }
            self._conservation = stored.execute("SELECT * FROM conservation").fetchone()
            self._run_id = stored.execute("SELECT value FROM meta WHERE key = 'run_id'").fetchone()[0]
        self._aside: dict[int, tuple[str, int, int]] = {}
        if (self._kept / "kept.db").exists():
            with _opened(self._kept / "kept.db") as aside:
                self._events = {**{row[0]: row for row in aside.execute(_EVENTS)}, **self._events}
                self._aside = {handle: tuple(rest) for handle, *rest in aside.execute("SELECT * FROM places")}
        self._accepted = {row["handle"]: row for row in self._updates if row["handle"] is not None}

    def check(self) -> Found:
        """Compare it all."""
        self._is_whole()
        self._what_was_said()
        self._is_conserved()
        recomputed = self._undisturbed()
        return Found(len(self._played.said.acks), len(self._accepted), recomputed)

    # --- what was said and what is stored ---

    def _is_whole(self) -> None:
        _must(self._integrity == ["ok"], f"run.db is damaged: {self._integrity}")
        _must(sorted(self._events) == list(range(1, len(self._events) + 1)), "an event is missing")
        versions = list(range(1, ROUNDS + 1))
        _must(list(self._digests) == versions, f"{len(self._digests)} rounds are stored, expected {ROUNDS}")

    def _what_was_said(self) -> None:
        said = self._played.said
        _must(said.run_ids == {self._run_id}, f"it was said to be the runs {said.run_ids}")
        of_task = Counter(row["task_id"] for row in self._accepted.values())
        _must(max(of_task.values(), default=0) <= 1, "an update was accepted twice")
        verdicts = self._verdicts()
        for ack in said.acks:
            stored = verdicts.get(ack.task_id, [])
            _must((ack.first_outcome, ack.reason) in stored, f"{ack} was said, and stored is {stored}")
            if ack.first_outcome == "accepted":
                _must(of_task[ack.task_id] == 1, f"{ack} was said, and the update does not count")
        counted = Counter(ack.task_id for ack in said.acks if ack.outcome == "accepted")
        _must(max(counted.values(), default=0) <= 1, "an update was told twice that it counts now")
        given_to = Counter(task.task_id for task in said.tasks)
        _must(max(given_to.values(), default=0) <= 1, "a task was given twice")
        for task in said.tasks:
            given = self._tasks.get(task.task_id)
            _must(given is not None, f"task {task.task_id} was given, and is not stored")
            assert given is not None
            _must(given[1:] == (task.number, task.version), f"task {task.task_id} was given as another")

    def _verdicts(self) -> dict[int, list[tuple[str, str | None]]]:
        """What each task's update was told. More than one thing only where the first was forgotten (`admission`)."""
        told: dict[int, list[tuple[str, str | None]]] = {}
        judged: dict[int, set[int]] = {}
        for row in self._updates:
            task_id, of_client = row["task_id"], judged.setdefault(row["client_id"], set())
            if task_id in of_client:
                newer = sum(other > task_id for other in of_client)
                forgotten = newer >= REMEMBERED_VERDICTS and row["reason"] in _FORGOTTEN
                _must(forgotten, f"the update of task {task_id} was judged a second time: {row}")
            of_client.add(task_id)
            outcome = "accepted" if row["reason"] is None else "rejected"
            told.setdefault(task_id, []).append((outcome, row["reason"]))
        return told

    def _is_conserved(self) -> None:
        aggregated = sum(row["round"] is not None for row in self._updates)
        rejected = sum(row["reason"] is not None for row in self._updates)
        pending = len(self._accepted) - aggregated
        expected = (len(self._updates), aggregated, pending, rejected)
        _must(self._conservation == expected, f"conservation is {self._conservation}, expected {expected}")
        told = self._played.outcome
        _must(told["versions"] == ROUNDS, f"the run ended at version {told['versions']}")
        counted = told["updates"]["accepted"]
        _must(counted == len(self._accepted), f"{counted} were accepted, and stored are {len(self._accepted)}")

    # --- the undisturbed run ---

    def _undisturbed(self) -> int:
        settings = self._settings
        parts = build.run_components(settings, lambda *_, **__: None)
        coordinator, learner = Coordinator(parts.coordinator), parts.learner
        base_of = {0: learner.model_d}
        rates = {0: learner.learning_rate}
        making: tuple[actions.Contribution, ...] | None = None
        for event in self._arrivals():
            if event.kind == events.RoundApplied.__name__:
                _must(making is not None, f"version {learner.version + 1} was made of a round that nobody closed")
                assert making is not None
                self._apply(learner, making)
                base_of[learner.version], rates[learner.version] = learner.model_d, learner.learning_rate
                making = None
            for action in records.replay(event, coordinator):
                if isinstance(action, actions.ApplyRound):
                    making = action.contributions
                elif isinstance(action, actions.ForgetVersion):
                    learner.forget(action.version)
                elif isinstance(action, actions.Acknowledge):
                    self._was_judged(action)
        self._ends_the_same(coordinator, learner)
        return self._recomputed(base_of, rates)

    def _arrivals(self) -> Iterator[EventRow]:
        for seq, at_s, kind, fields in (self._events[seq] for seq in sorted(self._events)):
            if kind != events.Resumed.__name__:
                yield EventRow(seq=seq, at_s=at_s, kind=kind, fields=json.loads(fields))

    def _was_judged(self, verdict: actions.Acknowledge) -> None:
        if verdict.outcome is actions.Outcome.ACCEPTED:
            stored = [row for row in self._accepted.values() if row["task_id"] == verdict.task_id]
            _must(len(stored) == 1, f"task {verdict.task_id} counts without crashes, stored are {stored}")

    def _apply(self, learner: Learner, making: tuple[actions.Contribution, ...]) -> None:
        version = learner.version + 1
        members = sorted(
            (row for row in self._accepted.values() if row["round"] == version), key=lambda row: row["position"]
        )
        closed = [(one.handle, one.task_id, one.base_version, one.staleness) for one in making]
        stored = [tuple(row[name] for name in ("handle", "task_id", "base_version", "staleness")) for row in members]
        _must(closed == stored, f"round {version} has {stored}, without crashes it has {closed}")
        matrix_KD = torch.empty(len(members), learner.row_numbers)  # of none, when nobody was left to wait for
        for row_D, row in zip(matrix_KD, members, strict=True):
            row_D.copy_(self._row(row))
        result = learner.apply_round(matrix_KD, [_told(row) for row in members])
        digest = self._digests[version]
        _must(
            result.sent.digest == digest,
            f"version {version} is {digest[:12]}, without crashes {result.sent.digest[:12]}",
        )

    def _ends_the_same(self, coordinator: Coordinator, learner: Learner) -> None:
        told = self._played.outcome
        _must(learner.version == coordinator.version == ROUNDS, f"without crashes it ends at {learner.version}")
        _must(learner.sent.digest == told["model_digest"], "the last version is not the one without crashes")
        counted = coordinator.updates_by_outcome  # repeats change nothing, and are not stored
        for outcome in ("accepted", "rejected"):
            _must(
                counted[outcome] == told["updates"][outcome],
                f"the server counted {told['updates']}, without crashes {counted}",
            )
        pending = [update.handle for update in coordinator.pending]
        stored = [handle for handle, row in self._accepted.items() if row["round"] is None]
        _must(pending == stored, f"{stored} wait at the end, without crashes {pending}")

    def _recomputed(self, base_of: Mapping[int, Tensor], rates: Mapping[int, float]) -> int:
        """Compare each row with what its client makes of its task, where a client keeps nothing between tasks: what it
        keeps depends on which acks it has heard."""
        if self._settings.training.name not in ("gradient", "sgd"):
            return 0
        context = training_context(self._settings)
        for row in self._accepted.values():
            version, rate = row["base_version"], row["local_rate"]
            _must(rate == rates[version], f"{row} was computed at another learning rate than {rates[version]}")
            made_D = _made(context, row, self._tasks[row["task_id"]][1], base_of[version])
            _must(torch.equal(made_D, self._row(row)), f"{row} is not what its client makes of its task")
        return len(self._accepted)

    def _row(self, row: Mapping[str, Any]) -> Tensor:
        """[D] float32, as it lies on disk."""
        if row["segment"] is None:
            name, offset, size_bytes = self._aside[row["handle"]]
            path = self._kept / name
        else:
            path, offset, size_bytes = (
                self._run / f"segments/{row['segment']:08d}.rows",
                row["offset"],
                row["size_bytes"],
            )
        with path.open("rb") as opened:
            opened.seek(offset)
            return torch.frombuffer(bytearray(opened.read(size_bytes)), dtype=torch.float32)


_FORGOTTEN = (actions.Reason.EXPIRED_TASK, actions.Reason.RUN_FINISHED)
_EVENTS = "SELECT seq, at_s, kind, fields FROM events"


def _arrival(row: Mapping[str, Any]) -> tuple[int, float, str, str]:
    """The event of an update, as the others are stored."""
    fields = {name: row[name] for name in ("client_id", "task_id", "base_version")}
    fields["handle"] = -1 if row["handle"] is None else row["handle"]
    fields["defect"] = row["reason"] if row["reason"] not in list(actions.Reason) else None
    return row["seq"], row["at_s"], events.UpdateArrived.__name__, json.dumps(fields)


def _made(context: TrainingContext, row: Mapping[str, Any], number: int, base_d: Tensor) -> Tensor:
    """The row of an update, as its client makes it and the server stages it."""
    local = context.workload.train(client_task(row["client_id"], number, base_d, row["local_rate"]))
    parcel = [flat.to_bytes(part) for part in translate.payload_parts(local)]
    row_D = torch.empty(sum(part.numel() for part in translate.payload_parts(local)))
    write(row_D.numpy(), parcel, local.kind, local.learning_rate, context.model.dimension)
    return row_D


def _told(row: Mapping[str, Any]) -> RoundUpdate:
    names = (
        "client_id",
        "task_id",
        "base_version",
        "staleness",
        "num_examples",
        "batch_examples",
        "loss",
        "local_rate",
    )
    return RoundUpdate(**{name: row[name] for name in names})


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FailureError(otherwise)
