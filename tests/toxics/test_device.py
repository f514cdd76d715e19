"""The duration of a task on a client."""

from math import exp, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from unstale.seeds import Stream, stream
from unstale.toxics.device import Device, Devices


def devices(seed: int = 0, clients: int = 10, **settings: Any) -> Devices:
    return Devices(seed, dict.fromkeys(range(clients), Device.model_validate(settings)))


def test_the_time_of_a_task_is_its_base_and_its_steps() -> None:
    # 3 * (2 + 0.1 * 5) = 7.5
    assert devices(task=2, step_s=0.1, factor=3).duration_s(0, 0, 5) == pytest.approx(7.5)
    assert devices(step_s=0.1).duration_s(0, 0, 5) == pytest.approx(0.5)


def test_a_client_without_a_device_takes_no_time() -> None:
    assert Devices(0, {}).duration_s(3, 0, 5) == 0
    assert devices(task=2, clients=1).duration_s(1, 0, 5) == 0


@given(seed=st.integers(0, 2**63 - 1), client=st.integers(0, 9), number=st.integers(0, 2**40))
def test_exponential_times_match_the_published_draws(seed: int, client: int, number: int) -> None:
    drawn = devices(seed, task={"distribution": "exponential", "mean_s": 0.7}).duration_s(client, number, 5)
    assert drawn == float(stream(seed, Stream.LATENCY, client, number).exponential(0.7))


def test_exponential_times_are_exponential() -> None:
    made = devices(task={"distribution": "exponential", "mean_s": 2})
    drawn = [made.duration_s(client, number, 5) for client in range(10) for number in range(200)]
    assert stats.kstest(drawn, stats.expon(scale=2).cdf).pvalue > 0.001


def test_the_first_draw_of_a_task_is_its_time_and_the_second_the_jitter() -> None:
    made = devices(task={"distribution": "uniform", "high_s": 1}, jitter=[0.5, 1.5])
    rng = stream(0, Stream.LATENCY, 4, 7)
    first, second = float(rng.random()), float(rng.random())
    assert made.duration_s(4, 7, 5) == pytest.approx(first * (0.5 + second), rel=1e-12)


def test_jitter_multiplies_each_task_by_a_uniform_factor() -> None:
    made = devices(task=2, jitter=[0.9, 1.1])
    drawn = [made.duration_s(client, number, 5) for client in range(10) for number in range(200)]
    assert stats.kstest(drawn, stats.uniform(1.8, 0.4).cdf).pvalue > 0.001


def test_speed_is_drawn_once_for_each_client_and_lognormal() -> None:
    made = devices(clients=2000, task=3, spread=0.5)
    assert {made.duration_s(5, number, 5) for number in range(20)} == {made.duration_s(5, 0, 5)}
    drawn = [log(made.duration_s(client, 0, 5) / 3) for client in range(2000)]
    assert stats.kstest(drawn, stats.norm(0, 0.5).cdf).pvalue > 0.001


def test_the_speed_of_a_client_multiplies_its_steps_too() -> None:
    speed = exp(0.5 * float(stream(0, Stream.DEVICES, 5).standard_normal()))
    made = devices(task=3, step_s=0.2, spread=0.5)
    assert made.duration_s(5, 0, 10) == pytest.approx(speed * 5)  # 3 + 0.2 * 10


def test_recorded_times_are_used_in_turn() -> None:
    made = devices(task={"distribution": "trace", "values_s": [1, 2, 5]})
    assert [made.duration_s(0, number, 5) for number in range(5)] == [1, 2, 5, 1, 2]


@given(
    seed=st.integers(0, 2**63 - 1),
    tasks=st.permutations([(client, number) for client in range(4) for number in range(4)]),
)
def test_the_order_of_queries_changes_no_time(seed: int, tasks: list[tuple[int, int]]) -> None:
    settings = {"task": {"distribution": "exponential", "mean_s": 1}, "spread": 1, "jitter": [0.9, 1.1]}
    in_order = devices(seed, **settings)
    expected = {task: in_order.duration_s(*task, 5) for task in sorted(tasks)}
    shuffled = devices(seed, **settings)
    assert {task: shuffled.duration_s(*task, 5) for task in tasks} == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"factor": 2},
        {"task": -1},
        {"step_s": -1},
        {"task": 1, "factor": 0},
        {"task": 1, "jitter": [1.1, 0.9]},
        {"task": 1, "jitter": [-0.1, 0.9]},
        {"task": 1, "jitter": [0.9]},
        {"task": 1, "spread": -1},
        {"task": float("inf")},
        {"task": {"distribution": "trace", "steps_s": [[0, 1], [5, 2]]}},
        {"tusk": 1},
    ],
)
def test_an_invalid_device_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Device.model_validate(settings)
