"""The swarm: 200 seeds pass, a seed is the same wherever it is played, and mistakes made on purpose are found.

`make swarm` plays more of them; a seed that fails prints the one command that plays it again.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from swarm.attempt import attempt
from swarm.seed import FailureError, Report, run
from unstale.client.session import ClientSession
from unstale.coordinator.admission import TaskHistory
from unstale.injector.core import Core
from unstale.learner.updates import Round, Staging
from unstale.server.intake import Intake
from unstale.server.outgoing import Outgoing
from unstale.server.proof import Proof
from unstale.server.sessions import Sessions
from unstale.toxics.passage import Passage
from unstale_proto.messages import Ack
from unstale_proto.transfer import Receiving

TESTS = Path(__file__).parents[1]
SEEDS = range(200)
BATCH = 50
MISTAKE_SEEDS = range(80)

_attempt = cache(attempt)


@pytest.mark.parametrize("first", SEEDS[::BATCH])
def test_nothing_wrong_comes_of_faults_and_then_everybody_is_served(first: int) -> None:
    failures = [said for said in map(_attempt, range(first, first + BATCH)) if isinstance(said, str)]
    assert not failures, "\n".join(failures)


def test_the_seeds_have_something_of_everything() -> None:
    seen: Counter[str] = Counter()
    for outcome in map(_attempt, SEEDS[:BATCH]):
        assert isinstance(outcome, Report)
        seen.update(outcome.seen)
    wanted = ["crashes", "take-overs", "connections broken", "server restarts", "server sleeps", "strangers"]
    wanted += ["TaskLost", "TaskDeclined", "TaskFailed", "clients left", "rounds"]
    wanted += ["updates announced", "models announced"]
    wanted += [
        f"toxic {name}" for name in ("drop", "duplicate", "reorder", "latency", "bandwidth", "corrupt")
    ]
    assert [name for name in wanted if not seen[name]] == []


@pytest.mark.parametrize("hash_seed", ["0", "77"])
def test_a_seed_is_the_same_to_the_letter_in_every_process(hash_seed: str) -> None:
    program = "from swarm.seed import run; print(*(run(seed).digest for seed in (3, 14)))"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert told.stdout.split() == [run(seed).digest for seed in (3, 14)]


# --- mistakes made on purpose ---


def _no_deduplication(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskHistory, "verdict_on", lambda *_: None)


def _nothing_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientSession, "_send_lost", lambda *_: [])


def _lost_tasks_are_not_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proof, "lost", lambda *_: None)


def _every_task_is_called_lost(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Proof, client_id: int, _: Any) -> int | None:
        sent = self._sent.pop(client_id, None)
        return None if sent is None else sent.task_id

    patch.setattr(Proof, "lost", lost)


def _no_order_on_a_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Passage, "_along_the_line", lambda _, flight: (flight,))
    patch.setattr(Core, "_forward", lambda self, line, what, size: self._push(line, what.due_s, what, size))


def _acknowledged_before_it_is_judged(patch: pytest.MonkeyPatch) -> None:
    judged = Intake.take

    def take(self: Intake, client_id: int, update: Any, frames: Any, found: Any = None) -> bool:
        ack = Ack(task_id=update.task_id, outcome="accepted", first_outcome="accepted")
        self._outgoing.tell(client_id, ack)
        return judged(self, client_id, update, frames, found)

    patch.setattr(Intake, "take", take)


def _nobody_is_superseded(patch: pytest.MonkeyPatch) -> None:
    admitted = Sessions.admit

    def admit(self: Sessions, *told: Any) -> None:
        admitted(self, *told)

    patch.setattr(Sessions, "admit", admit)
    patch.setattr(Sessions, "is_superseded", lambda *_: False)


def _rows_of_a_round_change_places(patch: pytest.MonkeyPatch) -> None:
    taken = Staging.take

    def take(self: Staging, handles: Any) -> Round:
        made = taken(self, handles)
        made.matrix_KD = made.matrix_KD.flip(0)
        return made

    patch.setattr(Staging, "take", take)


def _chunks_are_put_anywhere(patch: pytest.MonkeyPatch) -> None:
    def take(self: Receiving, _: int, frames: Any) -> Any:
        self.part.append(frames[0])
        return self.ask()

    patch.setattr(Receiving, "take", take)
    patch.setattr(Receiving, "is_right", lambda _: True)


def _models_are_asked_for_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientSession, "_ask_again", lambda *_: [])


def _an_owed_task_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    owed_to = Outgoing.owed_to
    patch.setattr(Outgoing, "owed_to", lambda self, client_id: (owed_to(self, client_id), None)[1])


def _the_injector_loses_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Core, "_uncount", lambda *_: None)


@pytest.mark.parametrize(
    "mistake",
    [
        _no_deduplication,
        _nothing_is_sent_again,
        _lost_tasks_are_not_found,
        _every_task_is_called_lost,
        _no_order_on_a_line,
        _acknowledged_before_it_is_judged,
        _nobody_is_superseded,
        _rows_of_a_round_change_places,
        _chunks_are_put_anywhere,
        _models_are_asked_for_once,
        _an_owed_task_is_forgotten,
        _the_injector_loses_count,
    ],
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(FailureError):
        _play(MISTAKE_SEEDS)


def _play(seeds: range) -> None:
    for seed in seeds:
        run(seed)
