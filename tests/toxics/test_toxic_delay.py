"""Distributions of delays: against those of scipy, and by hand."""

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from scipy import stats

from support.toxics import SEED
from unstale.seeds import Stream, stream
from unstale.toxics.delay import DISTRIBUTIONS, Delay, Distribution, Trace
from unstale.toxics.validation import user_error

DRAWS = 5000

LAWS: list[tuple[dict[str, Any], Any]] = [
    ({"distribution": "uniform", "low_s": 0.5, "high_s": 2.0}, stats.uniform(0.5, 1.5)),
    ({"distribution": "normal", "mean_s": 50.0, "deviation_s": 2.0}, stats.norm(50.0, 2.0)),
    ({"distribution": "lognormal", "median_s": 3.0, "sigma": 0.7}, stats.lognorm(0.7, scale=3.0)),
    ({"distribution": "exponential", "mean_s": 1.5}, stats.expon(scale=1.5)),
    ({"distribution": "pareto", "least_s": 0.2, "shape": 3.5}, stats.pareto(3.5, scale=0.2)),
]

over_all_laws = pytest.mark.parametrize(
    ("settings", "law"), LAWS, ids=[settings["distribution"] for settings, _ in LAWS]
)


class Holder(BaseModel):
    delay: Delay


def delay(settings: object) -> Distribution:
    made: Distribution = TypeAdapter(Delay).validate_python(settings)
    return made


def drawn(settings: object, number: int = DRAWS) -> list[float]:
    one = delay(settings)
    return [one.draw(stream(SEED, Stream.TOXICS, place), 0.0, place) for place in range(number)]


@over_all_laws
def test_draws_follow_their_distribution(settings: dict[str, Any], law: Any) -> None:
    assert stats.kstest(drawn(settings), law.cdf).pvalue > 0.001


@over_all_laws
def test_quantiles_and_mean_match_the_distribution(settings: dict[str, Any], law: Any) -> None:
    seconds = sorted(drawn(settings))
    for share in (0.1, 0.5, 0.9):
        # The share of draws below a quantile is binomial.
        below = sum(one < law.ppf(share) for one in seconds)
        assert abs(below - share * DRAWS) < 4 * (DRAWS * share * (1 - share)) ** 0.5
    assert abs(sum(seconds) / DRAWS - law.mean()) < 4 * law.std() / DRAWS**0.5


def test_a_bare_number_is_a_constant() -> None:
    assert delay(0.25) == delay({"distribution": "constant", "value_s": 0.25})
    assert drawn(2, 3) == [2.0, 2.0, 2.0]


def test_an_exponential_draw_is_the_first_of_its_generator() -> None:
    # Published digests depend on it.
    expected = float(stream(0, Stream.LATENCY, 4, 9).exponential(1.5))
    exponential = delay({"distribution": "exponential", "mean_s": 1.5})
    assert exponential.draw(stream(0, Stream.LATENCY, 4, 9), 0.0) == expected


def test_a_normal_draw_below_0_counts_as_0() -> None:
    settings = {"distribution": "normal", "mean_s": 1.0, "deviation_s": 2.0}
    seconds = drawn(settings)
    at_0 = sum(one == 0 for one in seconds)
    share = stats.norm.cdf(-0.5)
    assert min(seconds) == 0
    assert abs(at_0 - share * DRAWS) < 4 * (DRAWS * share * (1 - share)) ** 0.5


# --- traces ---


def by_time(one: Distribution, *times_s: float) -> list[float]:
    return [one.draw(stream(0, Stream.TOXICS), at_s) for at_s in times_s]


def test_a_trace_row_applies_until_the_next_and_the_trace_repeats() -> None:
    # Rows at 0, 2 and 6 s; the last one lasts 4 s like the one before it: the period is 10 s.
    one = delay({"distribution": "trace", "steps_s": [[0, 0.5], [2, 1.0], [6, 0.0]]})
    assert by_time(one, 0, 1.9, 2, 5.9, 6, 9.9, 10, 12, 1006) == [0.5, 0.5, 1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0]


def test_a_trace_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    file.write_text("time_s,delay_s\n0,0.5\n2,1.0\n", encoding="utf-8")
    one = delay({"distribution": "trace", "file": str(file)})
    file.unlink()
    assert by_time(one, 0, 2, 4) == [0.5, 1.0, 0.5]
    assert one == Trace(steps_s=((0.0, 0.5), (2.0, 1.0)))


def test_values_are_used_in_turn() -> None:
    settings = {"distribution": "trace", "values_s": [3.0, 1.0, 2.0]}
    assert drawn(settings, 5) == [3.0, 1.0, 2.0, 3.0, 1.0]


# --- mistakes ---


def sentence(settings: object) -> str:
    with pytest.raises(ValidationError) as raised:
        Holder.model_validate({"delay": settings})
    return str(user_error(raised.value, Holder, "here"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (-1, "delay.value_s is -1, expected at least 0"),
        (inf, "delay.value_s is inf, expected a finite number"),
        (nan, "delay.value_s is nan, expected a finite number"),
        (True, "delay is True, expected seconds, or a mapping with a distribution"),
        ("fast", "delay is 'fast', expected seconds, or a mapping with a distribution"),
        ({"mean_s": 1}, f"delay has no distribution; expected one of {', '.join(sorted(DISTRIBUTIONS))}"),
        ({"distribution": "exponentiel"}, "delay.distribution is 'exponentiel'; did you mean 'exponential'?"),
        ({"distribution": "exponential"}, "delay.mean_s is missing"),
        ({"distribution": "exponential", "mean_s": "1 s"}, "delay.mean_s is '1 s', expected a number"),
        ({"distribution": "exponential", "mean_s": -2}, "delay.mean_s is -2, expected at least 0"),
        ({"distribution": "exponential", "means": 2}, "unknown setting 'delay.means'; did you mean 'mean_s'?"),
        (
            {"distribution": "uniform", "low_s": 3, "high_s": 1},
            "delay: low_s is 3, expected at most high_s, which is 1",
        ),
        ({"distribution": "trace"}, "delay: a trace has a file or values_s, expected exactly one of them"),
        ({"distribution": "trace", "values_s": []}, "delay.values_s is [], expected at least one entry"),
        ({"distribution": "trace", "values_s": [1, -1]}, "delay.values_s.1 is -1, expected at least 0"),
        (
            {"distribution": "trace", "steps_s": [[0, 1], [5, 1], [5, 2]]},
            "delay: steps_s, row 3: time 5 s comes after 5 s, expected increasing times",
        ),
    ],
    ids=str,
)
def test_a_mistake_gets_a_one_sentence_error(settings: object, expected: str) -> None:
    if settings == {"distribution": "exponential", "means": 2}:
        settings = {"distribution": "exponential", "mean_s": 1, "means": 2}
    assert sentence(settings) == f"here: {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time_s,delay_s\n0,1\n5,1\n4,2\n", ", line 4: time 4 s comes after 5 s, expected increasing times"),
        ("time_s,delay_s\n0,1\n5,\n", ", line 3: delay_s is '', expected a number"),
        ("time_s,delay_s\n0,1\n\n5,2\n", ", line 3 has 0 cells, expected time_s,delay_s"),
        ("time_s,delay_s\n0,1\n5,-2\n", ", line 3: the delay is -2 s, expected at least 0"),
        ("time_s,delay_s\n1,1\n5,2\n", ", line 2: the first time is 1 s, expected 0"),
        ("time_s,delay_s\n0,1\n", ", line 2: 1 rows, expected at least 2"),
        ("time_s,delay_s\n0,1\n5,nan\n", ", line 3: delay_s is nan, expected a finite number"),
        ("time,delay\n0,1\n", " does not begin with the line time_s,delay_s"),
        ("", " does not begin with the line time_s,delay_s"),
    ],
)
def test_a_trace_file_with_gaps_or_unsorted_times_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "delays.csv"
    file.write_text(text, encoding="utf-8")
    assert sentence({"distribution": "trace", "file": str(file)}) == f"here: delay: trace {file}{expected}"


def test_a_missing_trace_file_gets_a_one_sentence_error(tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    expected = f"here: delay: trace {file} cannot be read: No such file or directory"
    assert sentence({"distribution": "trace", "file": str(file)}) == expected


def test_a_binary_trace_file_gets_a_one_sentence_error(tmp_path: Path) -> None:
    file = tmp_path / "delays.csv"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"here: delay: trace {file} cannot be read: " in sentence({"distribution": "trace", "file": str(file)})
