"""Number of iterations, residual and trust, learned from later updates."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles import inversion_oracle
from support.compensation import equal, inversion, numbers, received, smooth, stale_round, taken
from unstale.compensators import gradient_inversion
from unstale.compensators.errors import measured
from unstale.compensators.inversion.stopping import RESIDUALS, TRUSTS, Choice, Trial, Trials, loss_checkpoints, nearest

NOTHING = {"estimates": {}, "errors": [], "fallbacks": {}, "notes": [], "spent": [0, 0.0]}
ADAPTS: dict[str, Any] = {"adapt": True, "iterations": 20, "residual": 0.5, "trust": 1.0, "window": 1}


def trial(share: float, stale_l1: float = 1.0) -> Trial:
    """Of an estimate whose L1 error was this share of the stale update's."""
    return Trial(share * stale_l1, 0.0, stale_l1, 0.0)


def round_with(subject, *trials: tuple[int, float, float], version: int = 2) -> None:
    """A round without updates; with trials of choices: iterations, residual, share of the stale update's error."""
    rows = [[iterations, residual, 1.0, *trial(share)] for iterations, residual, share in trials]
    subject.take(stale_round(version=version), {**NOTHING, "trials": [rows]})


def made_of(subject, *updates, version: int = 3) -> dict[str, Any]:
    """The result of `make`; the round is applied."""
    round_ = stale_round(*updates, version=version)
    made = subject.make(round_)
    subject.take(round_, made)
    return made


def cosine_error(a_d: torch.Tensor, b_d: torch.Tensor) -> float:
    return 1 - float(torch.nn.functional.cosine_similarity(a_d.double(), b_d.double(), dim=0))


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [(40, (5, 10, 20, 40)), (30, (5, 10, 20, 30)), (6, (5, 6)), (5, (5,)), (3, (3,)), (1, (1,))],
)
def test_an_inversion_is_looked_at_ever_more_rarely_and_at_its_end(iterations, expected):
    assert loss_checkpoints(iterations) == expected


@pytest.mark.parametrize(("wanted", "found"), [(10, 10), (19, 10), (20, 20), (90, 20), (3, 5)])
def test_where_a_mark_was_not_reached_the_one_before_it_is_used(wanted, found):
    assert nearest({5: None, 10: None, 20: None}, wanted) == found


A, B, C = Choice(5, 0.5, 1.0), Choice(10, 0.5, 1.0), Choice(20, 0.5, 1.0)


def test_the_best_choice_has_the_smallest_mean_error():
    trials = Trials(2)
    trials.add({A: trial(0.9), B: trial(0.5)})
    assert trials.best() is None  # one update is not enough
    trials.add({A: trial(0.3), B: trial(0.6)})
    assert trials.best() == B  # 0.55 against 0.6
    trials.add({A: trial(0.2), B: trial(0.1)})
    assert trials.best() == A  # only the newest count: 0.25 against 0.35


def test_a_small_error_is_reported_as_small():
    # Of a stale error of 0.1 it is 25 times as much, of nine of 10 the half: 47.5 of 90.1, not a mean of ratios.
    trials = Trials(10)
    trials.add({A: trial(25.0, 0.1), B: trial(1.0, 0.1)})
    for _ in range(9):
        trials.add({A: trial(0.5, 10.0), B: trial(0.6, 10.0)})
    assert trials.of(A) == pytest.approx((4.75, 0.0, 9.01, 0.0))
    assert trials.best() == A


def test_old_trials_are_removed():
    trials = Trials(2)
    for _ in range(2):
        trials.add({A: trial(0.5), C: trial(0.1)})
    assert trials.best() == C
    trials.add({A: trial(0.5)})
    assert trials.best() == A
    trials.add({A: trial(0.5), C: trial(0.1)})
    assert trials.best() == A  # C is not known as well as that yet
    trials.add({A: trial(0.5), C: trial(0.1)})
    assert trials.best() == C


def test_of_equally_good_choices_the_shortest_is_best_and_nothing_is_best_of_none():
    trials = Trials(1)
    assert trials.best() is None
    trials.add({Choice(*choice, 1.0): trial(0.5) for choice in ((20, 0.0), (5, 1.0), (5, 0.5))})
    assert trials.best() == (5, 0.5, 1.0)
    trials.add({})  # no trial
    assert trials.best() == (5, 0.5, 1.0)


def test_restored_trials_still_leave_the_window():
    trials, other = Trials(2), Trials(2)
    for share in (0.8, 0.4):
        trials.add({A: trial(share), B: trial(0.5)})
    other.add({C: trial(0.0)})
    other.load_state_dict(trials.state_dict())
    assert other.best() == B  # 0.5 against 0.6
    other.add({A: trial(0.4), B: trial(0.5)})
    assert other.best() == A
    assert trials.best() == B


# In rounds.


def test_while_nothing_is_known_the_first_choice_is_used_though_more_is_done():
    outcome = taken(inversion(**ADAPTS), received())
    shorter = taken(inversion(**{**ADAPTS, "adapt": False, "iterations": 5}), received())
    torch.testing.assert_close(outcome.vectors[0], shorter.vectors[0], atol=1e-6, rtol=0)
    assert outcome.updates[0].iterations == 20


def test_without_it_all_iterations_are_used_and_nothing_else_is_stored():
    (one,) = made_of(inversion(**{**ADAPTS, "adapt": False}), received())["estimates"].values()
    assert list(one["kept"]) == [20]
    assert one["choice"] == [20, 0.5, 1.0]


@pytest.mark.parametrize(
    ("best", "used", "done"),
    [((5, 1.0), [5, 1.0, 1.0], 10), ((10, 0.0), [10, 0.0, 1.0], 20), ((20, 0.5), [20, 0.5, 1.0], 20)],
)
def test_the_best_choice_is_used_and_limits_iterations(best, used, done):
    subject = inversion(**ADAPTS)
    round_with(subject, (*best, 0.2), (5, 0.5, 0.3))
    (one,) = made_of(subject, received())["estimates"].values()
    assert (one["choice"], one["iterations"]) == (used, done)


def test_a_later_update_measures_every_choice():
    subject = inversion(**{**ADAPTS, "window": 9})
    stale, true = received(0), received(0, base_version=3, staleness=1)
    (one,) = made_of(subject, stale)["estimates"].values()
    (trials,) = made_of(subject, true, version=4)["trials"]
    assert [tuple(row[:3]) for row in trials] == [
        (mark, residual, trust) for mark in (5, 10, 20) for residual in RESIDUALS for trust in TRUSTS
    ]
    unchanged = float((stale.vector_d - true.vector_d).abs().sum())
    local = inversion_oracle.Local(steps=2, rate=stale.local_rate)
    for mark, residual, trust, l1, cosine, stale_l1, stale_cosine in trials:
        x, l = one["kept"][mark]["inputs"], one["kept"][mark]["labels"]  # noqa: E741
        there_d, here_d = (
            inversion_oracle.local_update(smooth(), w_d, x, l, local).detach() / stale.local_rate
            for w_d in (true.base_d, stale.base_d)
        )
        estimate_d = there_d + residual * (stale.vector_d - here_d)
        estimate_d = (1 - trust) * stale.vector_d + trust * estimate_d
        error = float((estimate_d - true.vector_d).abs().sum())
        assert l1 == pytest.approx(true.local_rate * error, rel=1e-4), (mark, residual)
        assert stale_l1 == pytest.approx(true.local_rate * unchanged, rel=1e-4)
        assert cosine == pytest.approx(cosine_error(estimate_d, true.vector_d), abs=1e-5), (mark, residual)
        assert stale_cosine == pytest.approx(cosine_error(stale.vector_d, true.vector_d), abs=1e-5)


def test_an_error_belongs_to_the_choice_that_was_used():
    subject = inversion(**ADAPTS)
    made = made_of(subject, received(0))
    true = received(0, base_version=3, staleness=0)
    (error,) = [one for one in made_of(subject, true, version=3)["errors"] if one[1] == "gradient-inversion"]
    estimate_d = made["estimates"][0]["estimate"]
    assert error[2] == pytest.approx(true.local_rate * float((estimate_d - true.vector_d).abs().sum()), rel=1e-5)


def test_an_error_is_measured_after_another_choice_became_better():
    subject = inversion(**{**ADAPTS, "residual": 0.3})
    made_of(subject, received(0))
    round_with(subject, (5, 1.0, 0.1))
    errors = made_of(subject, received(0, base_version=3, staleness=1), version=4)["errors"]
    assert [one[1] for one in errors] == ["none", "first-order", "gradient-inversion"]


def test_an_inversion_that_the_budget_ended_is_used():
    early = inversion(**{**ADAPTS, "iterations_per_round": 4, "iterations_min": 2})
    early.begin(received(0))
    for _ in range(4):
        assert early.work()
    (one,) = made_of(early, received(0))["estimates"].values()
    assert (sorted(one["kept"]), one["choice"], one["iterations"]) == ([4], [4, 0.5, 1.0], 4)


@pytest.mark.parametrize(("most", "kept"), [(4, [4]), (7, [5]), (13, [5, 10])])
def test_an_inversion_that_the_budget_ended_has_trials_at_checkpoints_only(most, kept):
    subject = inversion(**{**ADAPTS, "iterations_per_round": most, "iterations_min": 2})
    (one,) = made_of(subject, received(0))["estimates"].values()
    assert (sorted(one["kept"]), one["choice"][0], one["iterations"]) == (kept, kept[0], most)
    made = made_of(subject, received(0, base_version=3, staleness=0), version=3)
    assert {row[0] for rows in made["trials"] for row in rows} == set(kept) - {4}
    assert [error[1] for error in made["errors"]] == ["none", "first-order", "gradient-inversion"]


def test_an_estimate_whose_error_is_not_finite_is_not_tried(monkeypatch):
    def spoilt(update, method, estimate_d, staleness):
        error = measured(update, method, estimate_d, staleness)
        is_bad = method == "gradient-inversion" and torch.equal(estimate_d, bad_d)
        return replace(error, cosine=torch.nan) if is_bad else error

    subject = inversion(**{**ADAPTS, "window": 9})
    made = made_of(subject, received(0))
    bad_d = made["estimates"][0]["estimate"]  # of the choice that was used
    monkeypatch.setattr(gradient_inversion, "measured", spoilt)
    after = made_of(subject, received(0, base_version=3, staleness=0), version=3)
    assert after["errors"] == []
    (rows,) = after["trials"]
    assert [5, 0.5, 1.0] not in [row[:3] for row in rows]
    assert len(rows) == 3 * len(RESIDUALS) * len(TRUSTS) - 1


def test_an_exact_update_has_no_trials():
    # The stale update was right: its error is 0, and no share of it.
    subject = inversion(**ADAPTS)
    vector_d = numbers(123, seed=5, scale=0.3)
    made_of(subject, received(0, vector_d=vector_d))
    made = made_of(subject, received(0, base_version=3, staleness=0, vector_d=vector_d), version=3)
    assert made["trials"] == [[]]
    assert [one[2] for one in made["errors"] if one[1] == "none"] == [0.0]


def test_the_state_contains_the_trials():
    subject, resumed = inversion(**ADAPTS), inversion(**ADAPTS)
    round_with(subject, (5, 1.0, 0.1))
    resumed.load_state_dict(subject.state_dict())
    assert equal(taken(subject, received()), taken(resumed, received()))


def test_a_state_replaces_earlier_trials():
    subject, fresh = inversion(**ADAPTS), inversion(**ADAPTS)
    round_with(subject, (5, 1.0, 0.1))
    subject.load_state_dict(fresh.state_dict())
    assert equal(taken(subject, received()), taken(fresh, received()))
