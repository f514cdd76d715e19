"""Which updates made a version, and why its round closed then: by hand, and against a coordinator that was watched."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.journal import accepted, checkpoint, evaluation, rejected, round_of
from support.recorded import simulated
from support.running import small
from unstale.coordinator import actions, events
from unstale.coordinator.machine import DEADLINE
from unstale.errors import UserError
from unstale.journal.database import Database
from unstale.journal.explain import _ordinal, explain
from unstale.journal.replay import RecordedRun
from unstale.journal.rows import Batch, EvaluationRow, EventRow, OwnEvaluationRow, RoundRow, UpdateRow
from unstale.journal.rundir import RunDirectory
from unstale.learner.row_checks import Norms

BUFFERED = {"name": "buffered", "k": 2}


@contextmanager
def recorded(path: Path, batch: Batch, **changes: Any) -> Iterator[RecordedRun]:
    """A run of which this is known."""
    settings = small(clients=6, **changes)
    directory = RunDirectory.open(path, settings)
    database = Database(directory.database)
    database.store(batch, sync=False)
    database.close()
    directory.close()
    with RecordedRun(path) as run:
        yield run


def arrived(seq: int, at_s: float, client_id: int = 0) -> UpdateRow:
    """Under the handle `seq`."""
    return accepted(seq, seq, client_id=client_id)._replace(at_s=at_s)


def round_at(version: int, *handles: int, closed_s: float, wait_s: float = 1.0, **others: Any) -> RoundRow:
    row = round_of(version, *handles)._replace(closed_s=closed_s, applied_s=closed_s + 0.25, wait_s=wait_s)
    return row._replace(**others)


def event(seq: int, at_s: float, kind: str, **fields: Any) -> EventRow:
    return EventRow(seq=seq, at_s=at_s, kind=kind, fields=fields)


def why(path: Path, batch: Batch, version: int | None = None, **changes: Any) -> str:
    with recorded(path, batch, **changes) as run:
        return explain(run, version).why


# ------------------------------------------------------------------------------------------------------------ in a word


def test_a_full_round_closes_with_its_last_update(tmp_path: Path) -> None:
    batch = Batch(updates=[arrived(1, 1.5), arrived(2, 2.0)], rounds=[round_at(1, 1, 2, closed_s=2.0)])
    sentence = "buffered closes with 2 updates: the 2nd came at 2.000 s"
    assert why(tmp_path / "run", batch, trigger=BUFFERED) == sentence


def test_a_round_that_was_full_when_it_was_opened_says_so(tmp_path: Path) -> None:
    updates = [arrived(1, 1.0), arrived(2, 1.5), arrived(3, 1.6), arrived(4, 1.7)]
    batch = Batch(
        updates=updates, rounds=[round_at(1, 1, 2, closed_s=1.5), round_at(2, 3, 4, closed_s=1.75, wait_s=0.0)]
    )
    sentence = "buffered closes with 2 updates: 2 had come when it was opened, at 1.750 s"
    assert why(tmp_path / "run", batch, trigger=BUFFERED) == sentence


HAPPENED = {
    "client 4 left": event(2, 2.5, "ClientLeft", client_id=4),
    "client 4 failed at its task": event(2, 2.5, "TaskFailed", client_id=4, task_id=9),
    "the code of client 4 raised in its task": event(2, 2.5, "TaskRaised", client_id=4, task_id=9),
    "client 4 declined its task": event(2, 2.5, "TaskDeclined", client_id=4, task_id=9),
    "the task of client 4 expired": event(2, 2.5, "TaskExpired", client_id=4, task_id=9),
    "the update of client 4 was rejected": rejected(2, client_id=4)._replace(at_s=2.5),
    "the lease of client 4 expired": event(2, 2.5, "TimerFired", timer="lease", silent=[4]),
    "the lease of clients 4, 5 expired": event(2, 2.5, "TimerFired", timer="lease", silent=[4, 5]),
}


@pytest.mark.parametrize("words", HAPPENED)
def test_the_explanation_of_a_round_without_remaining_clients_names_the_event(words: str, tmp_path: Path) -> None:
    happened = HAPPENED[words]
    refused, others = ([happened], []) if isinstance(happened, UpdateRow) else ([], [happened])
    batch = Batch(
        events=[*others, event(3, 2.75, "RoundApplied", version=1), event(4, 3.0, "ClientLeft", client_id=5)],
        updates=[arrived(1, 1.5), *refused],
        rounds=[round_at(1, 1, closed_s=2.5)],
    )
    sentence = "k-async closes with 3 updates: 1 had come, and nobody was left to wait for at 2.500 s"
    assert why(tmp_path / "run", batch, trigger={"name": "k-async", "k": 3}) == f"{sentence} ({words})"


def test_what_happened_is_left_out_where_its_events_are_no_longer_kept(tmp_path: Path) -> None:
    batch = Batch(
        events=[event(seq, seq, "ClientLeft", client_id=4) for seq in range(6, 10)],
        updates=[arrived(1, 1.5)],
        rounds=[round_at(1, 1, closed_s=2.5)],
        checkpoints=[checkpoint(1, 5), checkpoint(2, 8)],
    )
    assert why(tmp_path / "run", batch, trigger={"name": "sync"}) == (
        "sync closes when every participant has answered or is out: 1 had come, and nobody was left to wait for "
        "at 2.500 s"
    )


def test_a_round_of_too_few_closes_with_the_last_that_could_come(tmp_path: Path) -> None:
    batch = Batch(updates=[arrived(1, 1.5), arrived(2, 2.0)], rounds=[round_at(1, 1, 2, closed_s=2.0)])
    sentence = "k-sync closes with the first 3 updates: the 2nd came at 2.000 s, and nobody was left to wait for"
    assert why(tmp_path / "run", batch, trigger={"name": "k-sync", "k": 3}) == sentence


@pytest.mark.parametrize(
    ("at_s", "closed_s", "wait_s", "cause"),
    [
        ((3.0, 4.0), 10.001, 10.001, "2 had come by then, at 10.001 s"),
        ((3.0,), 10.0, 10.0, "1 had come by then, at 10.000 s"),
        ((10.0,), 10.0, 10.0, "1 had come by then, at 10.000 s"),  # in virtual time, where it comes just in time
        ((12.0,), 12.0, 12.0, "the 1st came at 12.000 s"),
    ],
)
def test_a_deadline_or_the_first_update_after_it(
    at_s: Sequence[float], closed_s: float, wait_s: float, cause: str, tmp_path: Path
) -> None:
    updates = [arrived(seq, when_s) for seq, when_s in enumerate(at_s, start=1)]
    handles = range(1, len(updates) + 1)
    batch = Batch(updates=updates, rounds=[round_at(1, *handles, closed_s=closed_s, wait_s=wait_s)])
    rule = "deadline closes after 10 s with all updates so far, or the first one after that"
    trigger = {"name": "deadline", "k": None, "wait_s": 10}
    assert why(tmp_path / "run", batch, trigger=trigger) == f"{rule}: {cause}"


def test_sync_and_async_have_words_of_their_own(tmp_path: Path) -> None:
    one = Batch(updates=[arrived(1, 1.5)], rounds=[round_at(1, 1, closed_s=1.5)])
    assert why(tmp_path / "async", one, trigger={"name": "async"}) == (
        "async closes with every update: it came at 1.500 s"
    )
    assert why(tmp_path / "sync", one, trigger={"name": "sync"}) == (
        "sync closes when every participant has answered or is out: the last of 1 update came at 1.500 s"
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th"), (22, "22nd")],
)
def test_ordinals(number: int, words: str) -> None:
    assert _ordinal(number) == words


# ------------------------------------------------------------------------------------------------- the parts of a round


def test_each_update_has_its_weight_and_its_share(tmp_path: Path) -> None:
    # Weights 0.5 and -1.5: shares 1/4 and 3/4. The round was opened at 3 - 1.5 = 1.5 s.
    row = round_at(1, 1, 2, closed_s=3.0, wait_s=1.5)
    first, second = row.members
    batch = Batch(
        updates=[arrived(1, 1.25, client_id=3), arrived(2, 3.0, client_id=5)],
        rounds=[row._replace(members=(first, second._replace(weight=-1.5)))],
        evaluations=[evaluation(1)],
    )
    with recorded(tmp_path / "run", batch, trigger=BUFFERED) as run:
        found = explain(run)
    assert (found.version, found.last_version, found.opened_s) == (1, 1, 1.5)
    assert [member.client_id for member in found.members] == [3, 5]
    assert [member.staleness for member in found.members] == [0, 1]
    assert [member.weight for member in found.members] == [0.5, -1.5]
    assert [member.share for member in found.members] == [0.25, 0.75]
    assert [member.into_round_s for member in found.members] == [-0.25, 1.5]
    assert found.metrics == {"accuracy": 0.5, "loss": 1.25}


@pytest.mark.parametrize("weight", [0.0, float("nan")])
def test_there_are_no_shares_of_nothing(weight: float, tmp_path: Path) -> None:
    row = round_of(1, 1, weight=weight)._replace(closed_s=1.5)
    with recorded(tmp_path / "run", Batch(updates=[arrived(1, 1.5)], rounds=[row])) as run:
        assert explain(run).members[0].share is None


def test_a_refusal_belongs_to_the_round_that_was_open(tmp_path: Path) -> None:
    refused = [
        rejected(seq, reason)._replace(at_s=at_s)
        for seq, at_s, reason in (
            (2, 1.25, "non-finite"),
            (4, 2.0, "expired-task"),
            (5, 2.5, "expired-task"),
            (6, 2.75, "non-finite"),
            (8, 3.5, "expired-task"),
        )
    ]
    batch = Batch(
        updates=[arrived(1, 1.0), arrived(3, 1.5), *refused, arrived(7, 3.0)],
        rounds=[round_at(1, 1, closed_s=1.0), round_at(2, 3, closed_s=1.5), round_at(3, 7, closed_s=3.0)],
    )
    with recorded(tmp_path / "run", batch) as run:
        assert explain(run, 1).rejected == {}
        assert explain(run, 2).rejected == {"non-finite": 1}
        assert explain(run, 3).rejected == {"expired-task": 2, "non-finite": 1}


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (0, "ROUND is 0, the initial model, which no round made; expected 1 to 2"),
        (3, "ROUND is 3, expected 1 to 2, the last version"),
        (-1, "ROUND is -1, expected 1 to 2, the last version"),
    ],
)
def test_the_error_names_a_version_that_no_round_made(version: int, sentence: str, tmp_path: Path) -> None:
    batch = Batch(
        updates=[arrived(1, 1.0), arrived(2, 2.0)],
        rounds=[round_at(1, 1, closed_s=1.0), round_at(2, 2, closed_s=2.0)],
        evaluations=[evaluation(0), evaluation(1)],
    )
    with recorded(tmp_path / "run", batch) as run:
        assert explain(run).version == 2
        with pytest.raises(UserError) as error:
            explain(run, version)
    assert str(error.value) == sentence


def test_a_run_without_rounds_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with (
        recorded(tmp_path / "run", Batch(evaluations=[evaluation(0)])) as run,
        pytest.raises(UserError, match="the run has no rounds yet"),
    ):
        explain(run)


# ----------------------------------------------------------------------------------------- against one that was watched


@dataclass
class Closings:
    """The cause that closed each round of a run, in order: `update`, `deadline`, `opening` or another event."""

    kinds: list[str] = field(default_factory=list)

    def observe(self, event: events.Event, following: Sequence[actions.Action]) -> None:
        if any(isinstance(action, actions.ApplyRound) for action in following):
            accepts = isinstance(following[0], actions.Acknowledge) and following[0].reason is None
            if isinstance(event, events.UpdateArrived) and accepts:
                self.kinds.append("update")
            elif isinstance(event, events.TimerFired) and event.timer == DEADLINE:
                self.kinds.append("deadline")
            else:
                self.kinds.append("opening" if isinstance(event, events.RoundApplied) else "other")


SAID = {
    "update": " came at ",
    "deadline": " had come by then, at ",
    "opening": " had come when it was opened, at ",
    "other": " had come, and nobody was left to wait for at ",
}

CUT_OFF = """\
description: Two clients are cut off for good, and the others there in half of the rounds.
groups:
  - {name: cut off, clients: [4, 5], toxics: [{type: blackout, start_s: 3, end_s: 1_000_000}]}
  - {name: at times, clients: ["0-3"], toxics: [{type: dropout, p: 0.5}]}
"""

WATCHED: dict[str, dict[str, Any]] = {
    "sync": {"trigger": {"name": "sync"}, "scenario": {"name": "flaky"}},
    "sync, some away": {"trigger": {"name": "sync"}, "scenario": {"name": "availability-01"}},
    "k-sync": {"trigger": {"name": "k-sync", "k": 3}, "scenario": {"name": "flaky"}},
    "k-async": {"trigger": {"name": "k-async", "k": 4}, "scenario": {"name": "availability-05"}},
    "once a cycle": {"trigger": {"name": "k-async", "k": 4}, "policy": {"name": "gsgm"}},
    "async": {"trigger": {"name": "async"}, "scenario": {"name": "flaky"}},
    "buffered": {"trigger": {"name": "buffered", "k": 3}, "scenario": {"name": "fixed"}},
    "deadline": {"trigger": {"name": "deadline", "wait_s": 0.5}, "scenario": {"name": "exponential"}},
    "sync, cut off": {"trigger": {"name": "sync"}, "scenario": {"name": "cut-off.yaml"}},
    "k-async, cut off": {"trigger": {"name": "k-async", "k": 5}, "scenario": {"name": "cut-off.yaml"}},
}


@pytest.mark.parametrize("name", WATCHED)
def test_the_explanation_names_the_cause_that_closed_the_round(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut-off.yaml").write_text(CUT_OFF)
    closings = Closings()
    path = tmp_path / "run"
    simulated(path, observe=closings.observe, rounds=30, seed=5, **WATCHED[name])
    with RecordedRun(path) as run:
        sentences = [explain(run, version).why for version in range(1, 31)]
    assert len(closings.kinds) == 30
    for kind, sentence in zip(closings.kinds, sentences, strict=True):
        assert SAID[kind] in sentence


def test_each_member_has_its_norm_and_the_bound_when_it_came(tmp_path: Path) -> None:
    # Of six clients three are enough for a median, and the refused one votes, too: 20 * 2 of 1, 2, 90; then 20 * 3 of
    # 1, 2, 3, 90.
    norms = {1: 2.0, 2: 1.0, 4: 3.0, 5: 4.0, 6: 5.0}
    updates = [arrived(seq, float(seq), client_id=seq - 1)._replace(norms=Norms(norm)) for seq, norm in norms.items()]
    refused = rejected(3, client_id=2)._replace(at_s=3.0, norms=Norms(90.0), reason="norm-too-large")
    not_measured = arrived(7, 7.0, client_id=0)
    batch = Batch(
        updates=[*updates[:2], refused, *updates[2:], not_measured],
        rounds=[round_at(1, 1, 2, closed_s=2.0), round_at(2, 4, 5, closed_s=5.0), round_at(3, 6, 7, closed_s=7.0)],
    )
    with recorded(tmp_path / "run", batch, trigger=BUFFERED) as run:
        found = [[(one.norm, one.bound) for one in explain(run, version).members] for version in (1, 2, 3)]
    assert found == [[(2.0, None), (1.0, None)], [(3.0, 40.0), (4.0, 60.0)], [(5.0, 60.0), (None, None)]]


def test_a_version_without_a_test_set_has_the_metrics_of_its_clients(tmp_path: Path) -> None:
    update = arrived(1, 1.0, client_id=2)
    batch = Batch(
        updates=[update],
        rounds=[round_at(1, 1, closed_s=1.0, metrics={"stage": 2.0})],
        evaluations=[EvaluationRow(1, 1.5, {}, (), 0.0)],
        own_evaluations=[OwnEvaluationRow(1, 2, 1, {"rmse": 2.0, "mae": 1.0}, 4)],
    )
    changes = {"objective": {"name": "regression"}, "evaluate_clients_every": 1}
    with recorded(tmp_path / "clients", batch, **changes) as run:
        explained = explain(run, 1)
    assert (explained.split, [*explained.metrics.items()]) == ("clients", [("mae", 1.0), ("rmse", 2.0)])
    assert explained.policy_metrics == {"stage": 2.0}
    batch.own_evaluations.clear()
    with recorded(tmp_path / "training", batch, **changes) as run:
        assert (explain(run, 1).split, explain(run, 1).metrics) == ("training", {"loss": update.staged.loss})
