import pytest
from pydantic import ValidationError

from support.parts_of_runs import schedule_of
from unstale.errors import UserError
from unstale.settings.learning import ScheduleSettings
from unstale.training.schedule import RATE_MIN, SCHEDULES


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("constant", {}, {0: 0.1, 1: 0.1, 999: 0.1}),
        (
            "inverse",
            {},
            {0: 0.1, 1: 0.05, 4: 0.02, 99: 0.001},
        ),  # eta_0 / (t + 1), docs/methods/policies-with-memory.md#fedar
        ("inverse", {"period": 10}, {0: 0.1, 10: 0.05, 30: 0.025}),
        ("step", {"every": 3, "factor": 0.1}, {0: 0.1, 2: 0.1, 3: 0.01, 5: 0.01, 6: 0.001}),
        ("exponential", {"factor": 0.5}, {0: 0.1, 1: 0.05, 3: 0.0125}),
        # 0.02 + 0.08 * (1 + cos(pi t / 100)) / 2: cos is 1, 1/2, 0, -1.
        ("cosine", {"final": 0.02}, {0: 0.1, 50: 0.06, 100: 0.02, 150: 0.02}),
        ("cosine", {}, {0: 0.1, 50: 0.05, 100: RATE_MIN}),
        # Four rounds up to eta_0, then the schedule from its start, in the rest of the run.
        ("constant", {"warmup": 4}, {0: 0.025, 1: 0.05, 3: 0.1, 4: 0.1, 9: 0.1}),
        ("inverse", {"warmup": 4}, {3: 0.1, 4: 0.1, 5: 0.05}),
        ("cosine", {"warmup": 20}, {19: 0.1, 20: 0.1, 60: 0.05, 100: RATE_MIN}),
    ],
    ids=str,
)
def test_the_rate_by_hand(name, settings, expected):
    schedule = schedule_of(name, learning_rate=0.1, rounds=100, **settings)
    assert {t: schedule.rate(t) for t in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_without_warm_up_every_schedule_starts_at_its_rate_and_never_grows_or_ends_at_zero(name):
    schedule = schedule_of(name, learning_rate=0.1, rounds=50)
    rates = [schedule.rate(t) for t in range(60)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0
    assert schedule.rate(10**9) > 0


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_warm_up_as_long_as_the_run_is_only_a_warm_up(name):
    schedule = schedule_of(name, learning_rate=0.1, rounds=5, warmup=5)
    assert [schedule.rate(t) for t in range(5)] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("constant", {"factor": 0.5}, "schedule 'constant' takes no training.schedule.factor, got 0.5; leave it out"),
        ("cosine", {"every": 5}, "schedule 'cosine' takes no training.schedule.every, got 5; leave it out"),
    ],
)
def test_a_setting_of_another_schedule_is_refused_in_one_sentence(name, settings, sentence):
    with pytest.raises(UserError) as caught:
        schedule_of(name, learning_rate=0.1, rounds=100, **settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "wrong",
    [{"name": "cosin"}, {"factor": 2}, {"every": 0}, {"period": 0}, {"final": -0.1}, {"warmup": -1}, {"steps": 1}],
)
def test_values_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValidationError):
        ScheduleSettings(**wrong)
