"""The content of the status page, every number counted by hand."""

import json
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.shown import ABOUT, GATHERING
from unstale.compensators import Compensated, MeasuredError
from unstale.config.metrics import ACCURACY
from unstale.coordinator.phase import Phase
from unstale.server.status import ROUNDS_KEPT, STALENESS_MAX, UPDATES_SHOWN, Curve, Live, Point, Status
from unstale.training.measured import MainMetric

CURVE = {"splits": ["central", "central"], "names": ["accuracy", "loss"], "higher_is_better": True}


def applied(status: Status, version: int, staleness: tuple[int, ...], at_s: float = 0.0) -> None:
    weights = tuple(1 / len(staleness) for _ in staleness)
    status.applied(version, staleness, weights, wait_s=1, compensate_s=2, aggregate_s=3, overflowed=False, at_s=at_s)


def at(phase: Phase = Phase.OPEN, version: int = 0, at_s: float = 0.0) -> Live:
    return Live(at_s=at_s, phase=phase, version=version, clients={}, updates={}, pending=0)


def test_before_anything_has_happened_nothing_is_made_up() -> None:
    status = Status(ABOUT, clock=float, main=ACCURACY)
    assert status.elapsed_s(GATHERING) is None
    assert status.sections(GATHERING) == {
        "run": ABOUT,
        "state": {
            "standing": "gathering",
            "version": 0,
            "round_s": None,
            "left_s": None,
            "digest": None,
            "alarm": None,
        },
        "clients": GATHERING.clients,
        "updates": {"accepted": 0, "duplicate": 0, "rejected": 0, "pending": 0},
        "curve": {**CURVE, "points": [], "best": None},
        "metrics": {},
        "staleness": {"counts": [], "mean": None, "bounded_at": STALENESS_MAX},
        "rounds": [],
        "rejections": {"updates": {}, "messages": {}, "tasks": {}, "quarantines": 0},
        "compensation": None,
    }


def test_a_round_is_shown_with_its_updates_evaluation_and_checkpoint() -> None:
    status = Status(clock=lambda: 12.5, main=ACCURACY)
    status.started(10.0)
    status.applied(1, (0, 0, 4), (0.5, 0.25, 0.25), wait_s=1.0, compensate_s=0.5, aggregate_s=0.25, overflowed=True)
    status.evaluated(1, {"accuracy": 0.5, "loss": 1.25}, "central", evaluate_s=0.125, at_s=13.0)
    status.saved(1, 0.0625)
    sections = status.sections(at(version=1))
    assert sections["rounds"] == [
        {
            "version": 1,
            "at_s": 2.5,
            "updates": 3,
            "staleness": (0, 0, 4),
            "weights": [0.5, 0.25, 0.25],
            "staleness_mean": 1.33333,
            "staleness_max": 4,
            "overflowed": True,
            "phases_s": {"wait": 1.0, "compensate": 0.5, "aggregate": 0.25, "evaluate": 0.125, "checkpoint": 0.0625},
            "errors": {},
        }
    ]
    assert sections["staleness"] == {"counts": [2, 0, 0, 0, 1], "mean": 1.33333, "bounded_at": STALENESS_MAX}
    assert sections["curve"] == {**CURVE, "points": [[1, 3.0, 0.5, 1.25]], "best": [1, 3.0, 0.5, 1.25]}


def test_the_time_left_follows_the_last_rounds() -> None:
    status = Status({"rounds": 10}, clock=float, main=ACCURACY)
    status.started(100.0)
    applied(status, 1, (0,), at_s=101.0)
    assert status.sections(at(version=1))["state"]["left_s"] is None  # one round says nothing of the next
    applied(status, 2, (0,), at_s=103.0)
    applied(status, 3, (0,), at_s=107.0)
    state = status.sections(at(version=3))["state"]
    assert (state["round_s"], state["left_s"]) == (3.0, 21.0)  # (107 - 101) / 2, and seven times that
    assert status.sections(at(Phase.FINISHED, 10))["state"]["left_s"] is None


@pytest.mark.parametrize(
    ("phase", "version", "standing"),
    [
        (Phase.GATHERING, 0, "gathering"),
        (Phase.IDLE, 3, "idle"),
        (Phase.OPEN, 3, "running"),
        (Phase.MAKING, 3, "running"),
        (Phase.FINISHED, 9, "finished"),
        (Phase.FINISHED, 8, "stopped"),
    ],
)
def test_a_run_that_ends_before_its_last_round_was_stopped(phase: Phase, version: int, standing: str) -> None:
    status = Status({"rounds": 9}, clock=float, main=ACCURACY)
    assert status.sections(at(phase, version))["state"]["standing"] == standing


def test_a_run_that_a_metric_ended_was_not_stopped() -> None:
    status = Status({"rounds": 9}, clock=float, main=ACCURACY)
    status.target_reached()
    assert status.sections(at(Phase.OPEN, 3))["state"]["standing"] == "running"
    assert status.sections(at(Phase.FINISHED, 3))["state"]["standing"] == "reached"


def test_time_advances_until_the_run_is_over() -> None:
    status = Status({"rounds": 1}, clock=float, main=ACCURACY)
    status.started(10.0)
    status.started(11.0)  # the first task was before
    assert status.elapsed_s(at(at_s=14.0)) == 4.0
    applied(status, 1, (0,), at_s=15.0)
    assert status.elapsed_s(at(Phase.FINISHED, 1, at_s=99.0)) == 5.0  # taken up when it was over: to its last round
    status.ended("0" * 64, 16.0)
    assert status.elapsed_s(at(Phase.FINISHED, 1, at_s=99.0)) == 6.0


def test_a_version_that_is_measured_again_is_in_the_curve_once() -> None:
    status = Status(clock=float, main=ACCURACY)
    for version, accuracy in ((1, 0.5), (2, 0.75), (2, 0.75), (3, 0.25)):
        status.evaluated(version, {"accuracy": accuracy, "loss": 1.0}, "central", evaluate_s=0.0)
    curve = status.sections(at())["curve"]
    assert [point[0] for point in curve["points"]] == [1, 2, 3]
    assert curve["best"] == [2, 0.0, 0.75, 1.0]


def test_the_main_metric_and_the_loss_are_drawn_and_the_direction_decides_which_is_best() -> None:
    status = Status(clock=float, main=MainMetric("mae", higher_is_better=False))
    assert status.sections(at())["curve"]["names"] == ["mae", "loss"]
    for version, mae in ((1, 2.0), (2, 1.5), (3, 1.75)):
        status.evaluated(version, {"mae": mae, "r2": 0.5, "loss": 4.0}, "central", evaluate_s=0.0)
    assert status.sections(at())["curve"] == {
        "splits": ["central", "central"],
        "names": ["mae", "loss"],
        "higher_is_better": False,
        "points": [[1, 0.0, 2.0, 4.0], [2, 0.0, 1.5, 4.0], [3, 0.0, 1.75, 4.0]],
        "best": [2, 0.0, 1.5, 4.0],
    }


def test_a_run_without_a_loss_draws_the_next_metric_or_one_only() -> None:
    status = Status(clock=float, main=MainMetric("f1", higher_is_better=True))
    status.evaluated(1, {"f1": 0.5, "recall": 0.25}, "central", evaluate_s=0.0)
    assert status.sections(at())["curve"]["names"] == ["f1", "recall"]
    status.evaluated(2, {"f1": 0.75}, "central", evaluate_s=0.0)
    assert status.sections(at())["curve"] == {
        "splits": ["central"],
        "names": ["f1"],
        "higher_is_better": True,
        "points": [[2, 0.0, 0.75, None]],
        "best": [2, 0.0, 0.75, None],
    }


def test_the_first_evaluations_of_clients_begin_a_new_curve() -> None:
    status = Status(clock=float, main=MainMetric("mae", higher_is_better=False))
    status.evaluated(1, {"loss": 4.0}, "training", evaluate_s=0.0)
    status.evaluated(2, {"mae": 2.0}, "clients", evaluate_s=0.0)
    curve = status.sections(at())["curve"]
    assert (curve["splits"], curve["names"], curve["points"]) == (["clients"], ["mae"], [[2, 0.0, 2.0, None]])


def test_the_loss_of_the_training_is_drawn_beside_a_single_metric() -> None:
    status = Status(clock=float, main=MainMetric("mae", higher_is_better=False))
    status.evaluated(1, {"mae": 2.0}, "clients", training_loss=4.0, evaluate_s=0.0)
    curve = status.sections(at())["curve"]
    assert (curve["splits"], curve["names"]) == (["clients", "training"], ["mae", "loss"])
    assert curve["points"] == [[1, 0.0, 2.0, 4.0]]


def test_a_metric_of_unknown_direction_has_no_best_value() -> None:
    status = Status(clock=float, main=MainMetric("mae", higher_is_better=False))
    status.evaluated(1, {"f1": 0.5}, "central", evaluate_s=0.0)
    curve = status.sections(at())["curve"]
    assert (curve["higher_is_better"], curve["best"]) == (None, None)


def test_the_latest_metrics_of_each_split_are_shown() -> None:
    status = Status(clock=float, main=ACCURACY)
    status.follow(lambda: {"training": {"loss": nan, "mae": 0.5}, "policy": {}})
    assert status.sections(at())["metrics"] == {"training": {"loss": None, "mae": 0.5}}


def test_of_many_points_every_second_is_kept_and_always_the_last() -> None:
    curve = Curve(("mae",), ("clients",), is_higher_better=False, points_max=4)
    kept = []
    for version in range(1, 10):
        curve.add(Point(version, 0.0, 0.0, 0.0))
        kept.append([point.version for point in curve.points])
    assert kept == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3, 4],
        [1, 3, 5],
        [1, 3, 5, 6],
        [1, 3, 5, 7],
        [1, 3, 5, 7, 8],
        [1, 5, 9],
    ]


@given(points=st.integers(1, 3000), points_max=st.integers(2, 50))
def test_a_curve_is_bounded_has_both_ends_and_equal_steps(points: int, points_max: int) -> None:
    curve = Curve(("mae",), ("clients",), is_higher_better=False, points_max=points_max)
    for version in range(points):
        curve.add(Point(version, 0.0, 0.0, 0.0))
    versions = [point.version for point in curve.points]
    assert len(versions) <= points_max + 1
    assert (versions[0], versions[-1]) == (0, points - 1)
    steps = [after - before for before, after in pairwise(versions)]
    assert len(set(steps[:-1])) <= 1
    assert all(step > 0 for step in steps)


def test_everything_is_bounded_however_long_the_run_and_large_its_rounds() -> None:
    status = Status(ABOUT, clock=float, main=ACCURACY)
    for version in range(1, 2001):
        applied(status, version, (version,) * 60)
        status.evaluated(version, {"accuracy": 0.5, "loss": 1.0}, "central", evaluate_s=0.0)
    sections = status.sections(at(version=2000))
    assert [shown["version"] for shown in sections["rounds"]] == list(range(2001 - ROUNDS_KEPT, 2001))
    last = sections["rounds"][-1]
    assert (last["updates"], len(last["staleness"]), len(last["weights"])) == (60, UPDATES_SHOWN, UPDATES_SHOWN)
    assert (last["staleness_mean"], last["staleness_max"]) == (2000, 2000)
    counts = sections["staleness"]["counts"]
    assert len(counts) == STALENESS_MAX + 1
    assert (counts[1], counts[-1], sum(counts)) == (60, 60 * 1001, 60 * 2000)
    assert len(json.dumps(sections)) < 64_000


def test_a_value_that_is_no_number_is_reported_as_null() -> None:
    status = Status(clock=float, main=ACCURACY)
    status.applied(1, (), (), wait_s=0, compensate_s=0, aggregate_s=0, overflowed=False)
    status.applied(2, (1,), (nan,), wait_s=inf, compensate_s=0, aggregate_s=0, overflowed=True)
    status.evaluated(1, {"accuracy": 0.1, "loss": nan}, "central", evaluate_s=0.0)
    sections = status.sections(at())
    assert json.loads(json.dumps(sections, allow_nan=False))["curve"]["points"] == [[1, 0.0, 0.1, None]]
    assert [shown["staleness_mean"] for shown in sections["rounds"]] == [None, 1.0]
    assert sections["rounds"][1]["weights"] == [None]


def test_rejections_are_counted_by_reason() -> None:
    status = Status(clock=float, main=ACCURACY)
    for reason in ("non-finite", "expired-task", "non-finite"):
        status.rejected(reason)
    status.refused("malformed-header")
    status.given_back("code-error")
    status.quarantined()
    assert status.sections(at())["rejections"] == {
        "updates": {"non-finite": 2, "expired-task": 1},
        "messages": {"malformed-header": 1},
        "tasks": {"code-error": 1},
        "quarantines": 1,
    }


def test_errors_of_compensation_are_means_by_method() -> None:
    def error(method: str, l1: float, cosine: float) -> MeasuredError:
        return MeasuredError(client_id=0, method=method, l1=l1, cosine=cosine, staleness=3)

    status = Status(clock=float, main=ACCURACY)
    applied(status, 1, (0, 3))
    status.compensated(
        1,
        [Compensated(), Compensated(method="first-order", share=1.0)],
        [error("none", 2.0, 0.5), error("none", 4.0, 0.25), error("first-order", 1.0, 0.125)],
        {"budget": 1},
    )
    sections = status.sections(at())
    assert sections["rounds"][0]["errors"] == {
        "none": {"l1": 3.0, "cosine": 0.375},
        "first-order": {"l1": 1.0, "cosine": 0.125},
    }
    assert sections["compensation"] == {"methods": {"first-order": 1}, "fallbacks": {"budget": 1}}


def test_an_earlier_answer_does_not_change_under_its_reader() -> None:
    status = Status(clock=float, main=ACCURACY)
    applied(status, 1, (0, 3))
    before = status.sections(at())
    text = json.dumps(before)
    applied(status, 2, (1, 7))
    status.evaluated(1, {"accuracy": 0.5, "loss": 1.0}, "central", evaluate_s=0.5)
    status.rejected("non-finite")
    assert json.dumps(before) == text
