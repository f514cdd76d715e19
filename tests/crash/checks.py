"""Checks of a finished run: the server's messages, its stored run, and the same arrivals without crashes.

The undisturbed run is computed here: a new coordinator handles the recorded events in order, except those of a restart
(`Resumed`), and a new learner applies the rounds that it closes. The stored run is read with SQLite and plain file
reads, not through the journal.

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
    """Numbers of compared items. recomputed: rows that equal their clients' computation, bit for bit."""

    acks: int
    accepted: int
    recomputed: int


class Checks:
    """Checks of one run. `check` raises FailureError at the first failed one."""

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
            # Its writer may have been killed in a transaction, which only a connection that may write rolls back.
            with _opened(self._kept / "kept.db", mode="rw") as aside:
                self._events = {**{row[0]: row for row in aside.execute(_EVENTS)}, **self._events}
                self._aside = {handle: tuple(rest) for handle, *rest in aside.execute("SELECT * FROM places")}
        self._accepted = {row["handle"]: row for row in self._updates if row["handle"] is not None}

    def check(self) -> Found:
        """Run all checks."""
        self._check_complete()
        self._check_messages()
        self._check_balance()
        recomputed = self._undisturbed()
        return Found(len(self._played.sent.acks), len(self._accepted), recomputed)

    # --- messages and stored run ---

    def _check_complete(self) -> None:
        _require(self._integrity == ["ok"], f"run.db is damaged: {self._integrity}")
        _require(sorted(self._events) == list(range(1, len(self._events) + 1)), "an event is missing")
        versions = list(range(1, ROUNDS + 1))
        _require(list(self._digests) == versions, f"{len(self._digests)} rounds are stored, expected {ROUNDS}")

    def _check_messages(self) -> None:
        sent = self._played.sent
        _require(sent.run_ids == {self._run_id}, f"the server sent the run ids {sent.run_ids}")
        of_task = Counter(row["task_id"] for row in self._accepted.values())
        _require(max(of_task.values(), default=0) <= 1, "an update was accepted twice")
        verdicts = self._verdicts()
        for ack in sent.acks:
            stored = verdicts.get(ack.task_id, [])
            _require((ack.first_outcome, ack.reason) in stored, f"{ack} was sent, but the stored verdicts are {stored}")
            if ack.first_outcome == "accepted":
                _require(of_task[ack.task_id] == 1, f"{ack} was sent, but the update does not count")
        counted = Counter(ack.task_id for ack in sent.acks if ack.outcome == "accepted")
        _require(max(counted.values(), default=0) <= 1, "an update was twice acknowledged as accepted now")
        given_to = Counter(task.task_id for task in sent.tasks)
        _require(max(given_to.values(), default=0) <= 1, "a task was sent twice")
        for task in sent.tasks:
            given = self._tasks.get(task.task_id)
            _require(given is not None, f"task {task.task_id} was sent, but is not stored")
            assert given is not None
            _require(given[1:] == (task.number, task.version), f"task {task.task_id} was sent with other content")

    def _verdicts(self) -> dict[int, list[tuple[str, str | None]]]:
        """Verdicts on each task's update: several only where the first was forgotten (`admission`)."""
        verdicts: dict[int, list[tuple[str, str | None]]] = {}
        judged: dict[int, set[int]] = {}
        for row in self._updates:
            task_id, of_client = row["task_id"], judged.setdefault(row["client_id"], set())
            if task_id in of_client:
                newer = sum(other > task_id for other in of_client)
                forgotten = newer >= REMEMBERED_VERDICTS and row["reason"] in _FORGOTTEN
                _require(forgotten, f"the update of task {task_id} was judged a second time: {row}")
            of_client.add(task_id)
            outcome = "accepted" if row["reason"] is None else "rejected"
            verdicts.setdefault(task_id, []).append((outcome, row["reason"]))
        return verdicts

    def _check_balance(self) -> None:
        aggregated = sum(row["round"] is not None for row in self._updates)
        rejected = sum(row["reason"] is not None for row in self._updates)
        pending = len(self._accepted) - aggregated
        expected = (len(self._updates), aggregated, pending, rejected)
        _require(self._conservation == expected, f"conservation is {self._conservation}, expected {expected}")
        outcome = self._played.outcome
        _require(outcome["versions"] == ROUNDS, f"the run ended at version {outcome['versions']}")
        counted = outcome["updates"]["accepted"]
        _require(counted == len(self._accepted), f"{counted} were accepted, and stored are {len(self._accepted)}")

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
                _require(making is not None, f"version {learner.version + 1} has no closed round")
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
                    self._check_verdict(action)
        self._check_end(coordinator, learner)
        return self._recomputed(base_of, rates)

    def _arrivals(self) -> Iterator[EventRow]:
        for seq, at_s, kind, fields in (self._events[seq] for seq in sorted(self._events)):
            if kind != events.Resumed.__name__:
                yield EventRow(seq=seq, at_s=at_s, kind=kind, fields=json.loads(fields))

    def _check_verdict(self, verdict: actions.Acknowledge) -> None:
        if verdict.outcome is actions.Outcome.ACCEPTED:
            stored = [row for row in self._accepted.values() if row["task_id"] == verdict.task_id]
            _require(len(stored) == 1, f"task {verdict.task_id} counts without crashes, stored are {stored}")

    def _apply(self, learner: Learner, making: tuple[actions.Contribution, ...]) -> None:
        version = learner.version + 1
        members = sorted(
            (row for row in self._accepted.values() if row["round"] == version), key=lambda row: row["position"]
        )
        closed = [(one.handle, one.task_id, one.base_version, one.staleness) for one in making]
        stored = [tuple(row[name] for name in ("handle", "task_id", "base_version", "staleness")) for row in members]
        _require(closed == stored, f"round {version} has {stored}, without crashes it has {closed}")
        matrix_KD = torch.empty(len(members), learner.row_numbers)  # empty if no client was left to wait for
        for row_D, row in zip(matrix_KD, members, strict=True):
            row_D.copy_(self._row(row))
        result = learner.apply_round(matrix_KD, [_round_update(row) for row in members])
        digest = self._digests[version]
        _require(
            result.sent.digest == digest,
            f"version {version} is {digest[:12]}, without crashes {result.sent.digest[:12]}",
        )

    def _check_end(self, coordinator: Coordinator, learner: Learner) -> None:
        outcome = self._played.outcome
        _require(learner.version == coordinator.version == ROUNDS, f"without crashes it ends at {learner.version}")
        _require(learner.sent.digest == outcome["model_digest"], "the last version is not the one without crashes")
        counted = coordinator.updates_by_outcome  # duplicates have no effect, and are not stored
        for kind in ("accepted", "rejected"):
            _require(
                counted[kind] == outcome["updates"][kind],
                f"the server counted {outcome['updates']}, without crashes {counted}",
            )
        pending = [update.handle for update in coordinator.pending]
        stored = [handle for handle, row in self._accepted.items() if row["round"] is None]
        _require(pending == stored, f"{stored} are pending at the end, without crashes {pending}")

    def _recomputed(self, base_of: Mapping[int, Tensor], rates: Mapping[int, float]) -> int:
        """Compare each row with its client's computation, where clients have no state between tasks: that state depends
        on the received acks."""
        if self._settings.training.name not in ("gradient", "sgd"):
            return 0
        context = training_context(self._settings)
        for row in self._accepted.values():
            version, rate = row["base_version"], row["local_rate"]
            _require(rate == rates[version], f"{row} was computed at another learning rate than {rates[version]}")
            made_D = _made(context, row, self._tasks[row["task_id"]][1], base_of[version])
            _require(torch.equal(made_D, self._row(row)), f"{row} is not what its client makes of its task")
        return len(self._accepted)

    def _row(self, row: Mapping[str, Any]) -> Tensor:
        """The stored row, [D] float32."""
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
    """The event of an update, in the stored form of the others."""
    fields = {name: row[name] for name in ("client_id", "task_id", "base_version")}
    fields["handle"] = -1 if row["handle"] is None else row["handle"]
    fields["defect"] = row["reason"] if row["reason"] not in list(actions.Reason) else None
    return row["seq"], row["at_s"], events.UpdateArrived.__name__, json.dumps(fields)


def _made(context: TrainingContext, row: Mapping[str, Any], number: int, base_d: Tensor) -> Tensor:
    """The row of an update, computed by its client and staged by the server."""
    local = context.workload.train(client_task(row["client_id"], number, base_d, row["local_rate"]))
    parcel = [flat.to_bytes(part) for part in translate.payload_parts(local)]
    row_D = torch.empty(sum(part.numel() for part in translate.payload_parts(local)))
    write(row_D.numpy(), parcel, local.kind, local.learning_rate, context.model.dimension)
    return row_D


def _round_update(row: Mapping[str, Any]) -> RoundUpdate:
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


def _opened(path: Path, mode: str = "ro") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FailureError(otherwise)
