import pytest

from unstale.errors import UserError
from unstale.training.schedule import RATE_MIN, SCHEDULES, create


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
        # Four rounds up to eta_0, then the schedule as if it began there, in what is left of the run.
        ("constant", {"warmup": 4}, {0: 0.025, 1: 0.05, 3: 0.1, 4: 0.1, 9: 0.1}),
        ("inverse", {"warmup": 4}, {3: 0.1, 4: 0.1, 5: 0.05}),
        ("cosine", {"warmup": 20}, {19: 0.1, 20: 0.1, 60: 0.05, 100: RATE_MIN}),
    ],
    ids=str,
)
def test_the_rate_by_hand(name, settings, expected):
    schedule = create(name, learning_rate=0.1, rounds=100, **settings)
    assert {t: schedule.rate(t) for t in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_without_warm_up_every_schedule_starts_at_its_rate_and_never_grows_or_ends_at_zero(name):
    schedule = create(name, learning_rate=0.1, rounds=50)
    rates = [schedule.rate(t) for t in range(60)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0
    assert schedule.rate(10**9) > 0


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_setting_says_what_it_is(name):
    assert all(field.description for field in SCHEDULES[name].model_fields.values())


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_warm_up_as_long_as_the_run_is_only_a_warm_up(name):
    schedule = create(name, learning_rate=0.1, rounds=5, warmup=5)
    assert [schedule.rate(t) for t in range(5)] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("cosin", {}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ("constant", {"factor": 0.5}, "unknown setting 'factor' of schedule 'constant'"),
        ("step", {"factor": 2}, "schedule.factor is 2, expected less than or equal to 1"),
        ("step", {"every": 0}, "schedule.every is 0, expected greater than or equal to 1"),
        ("inverse", {"period": 0}, "schedule.period is 0, expected greater than 0"),
        ("cosine", {"final": -0.1}, "schedule.final is -0.1, expected greater than or equal to 0"),
    ],
)
def test_a_schedule_that_cannot_be_made_is_refused_in_one_sentence(name, settings, sentence):
    with pytest.raises(UserError) as caught:
        create(name, learning_rate=0.1, rounds=100, **settings)
    assert str(caught.value).startswith(sentence)
