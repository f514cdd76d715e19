"""The progress and the outcome of a run, counted by hand."""

from math import isnan, nan

import pytest

from unstale.metrics.progress import Outcome, Progress, Tally

CLIENTS = {"working": 3, "lost": 1}


def test_progress_counts_from_the_previous_evaluation() -> None:
    tally = Tally(rounds=10)
    tally.started(100.0)
    tally.evaluated(0, 0.1, 2.3, CLIENTS, 100.0)
    for _ in range(6):
        tally.accepted()
    tally.applied([0, 1, 2], overflowed=False)
    tally.applied([3], overflowed=False)
    assert tally.evaluated(2, 0.5, 1.5, CLIENTS, 102.0) == Progress(
        version=2,
        rounds=10,
        accuracy=0.5,
        loss=1.5,
        staleness_mean=(0 + 1 + 2 + 3) / 4,
        updates_per_s=6 / 2,
        clients=CLIENTS,
        elapsed_s=2.0,
    )
    tally.accepted()
    tally.applied([8], overflowed=False)
    later = tally.evaluated(3, 0.6, 1.4, CLIENTS, 106.0)
    assert (later.staleness_mean, later.updates_per_s, later.elapsed_s) == (8.0, 1 / 4, 6.0)


def test_a_note_is_reported_once_in_a_run() -> None:
    tally = Tally(rounds=2)
    assert tally.news(["two", "one", "two"]) == ["two", "one"]
    assert tally.news(["one", "three"]) == ["three"]
    assert Tally(rounds=2).news(["one"]) == ["one"]


def test_the_outcome_covers_the_whole_run() -> None:
    tally = Tally(rounds=2)
    tally.started(10.0)
    tally.applied([0, 2], overflowed=False)
    tally.evaluated(1, 0.4, 2.0, CLIENTS, 11.0)
    tally.applied([4], overflowed=True)
    tally.evaluated(2, 0.8, 1.0, CLIENTS, 12.0)
    updates = {"accepted": 3, "duplicate": 0, "rejected": 1}
    assert tally.ended("finished", 2, updates, "w2", 12.5) == Outcome(
        reason="finished",
        versions=2,
        test_accuracy=0.8,
        test_loss=1.0,
        seconds=2.5,
        updates=updates,
        staleness_mean=(0 + 2 + 4) / 3,
        overflows=1,
        model_digest="w2",
    )


def test_the_run_starts_once() -> None:
    tally = Tally(rounds=1)
    tally.started(1.0)
    tally.started(5.0)
    assert tally.ended("finished", 1, {}, "w1", 7.0).seconds == 6.0


def test_a_run_that_never_started_took_no_time_and_measured_nothing() -> None:
    outcome = Tally(rounds=1).ended("shutdown", 0, {}, "w0", 7.0)
    assert (outcome.seconds, outcome.versions, outcome.model_digest) == (0.0, 0, "w0")
    assert isnan(outcome.test_accuracy)
    assert isnan(outcome.staleness_mean)


@pytest.mark.parametrize("at_s", [3.0, 4.0])
def test_without_rounds_there_is_no_staleness_and_without_time_no_rate(at_s: float) -> None:
    tally = Tally(rounds=1)
    tally.started(3.0)
    tally.accepted()
    progress = tally.evaluated(0, nan, nan, {}, at_s)
    assert isnan(progress.staleness_mean)
    assert progress.updates_per_s == (0.0 if at_s == 3.0 else 1.0)
