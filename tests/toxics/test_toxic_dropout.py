"""`dropout`: clients that are absent at times. Source: docs/methods/heterogeneity.md#availability."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import exp, sqrt
from pathlib import Path

import pytest
from scipy.stats import kstest
from typing_extensions import override

from support.toxics import SEED, Written, draws, dues_s, message, passage, task, toxic
from unstale.errors import UserError
from unstale.seeds import Generator, Stream, stream
from unstale.toxics.dropout import Dropout
from unstale.toxics.rng import ToxicRng


def dropout(**settings: object) -> Dropout:
    made = toxic(type="dropout", **settings)
    assert isinstance(made, Dropout)
    return made


# --- by rounds ---


def test_a_task_is_declined_in_a_round_in_which_its_client_is_absent() -> None:
    way = passage({"type": "dropout", "p": 0.3})
    for client_id in range(5):
        for version in range(20):
            flight = task(client_id=client_id, version=version)
            is_there = stream(SEED, Stream.AVAILABILITY, client_id, version).random() < 0.3
            assert way.send(flight) == (replace(flight, declined=not is_there),)


def test_p_is_the_share_of_rounds_in_which_a_client_is_present() -> None:
    way = passage({"type": "dropout", "p": 0.3})
    there = sum(not way.send(task(version=version))[0].declined for version in range(5000))
    assert abs(there - 1500) < 4 * sqrt(5000 * 0.3 * 0.7)


@pytest.mark.parametrize(("p", "declined"), [(0.0, True), (1.0, False)])
def test_p_0_is_never_present_and_p_1_is_always_present(p: float, declined: bool) -> None:
    way = passage({"type": "dropout", "p": p})
    assert all(way.send(task(version=version))[0].declined is declined for version in range(50))


def test_a_task_resent_in_a_round_gets_the_same_result() -> None:
    way = passage({"type": "dropout", "p": 0.5})
    for version in range(30):
        outcomes = {way.send(task(version=version, number=number))[0].declined for number in (1, 2, 3)}
        assert len(outcomes) == 1


def test_dropout_by_rounds_affects_tasks_only() -> None:
    way = passage({"type": "dropout", "p": 0.0})
    flights = [message(), message(type="heartbeat"), message(type="welcome", direction="down")]
    assert dues_s(way, flights) == [[0.0]] * 3
    assert not way.counts.touched


def test_a_declined_task_is_not_forwarded() -> None:
    way = passage({"type": "dropout", "p": 0.0}, {"type": "drop"})
    (out,) = way.send(task())
    assert out.declined


def test_the_stricter_of_two_dropouts_decides() -> None:
    both = passage({"type": "dropout", "p": 0.7}, {"type": "dropout", "name": "stricter", "p": 0.4})
    one = passage({"type": "dropout", "p": 0.4})
    for version in range(100):
        assert both.send(task(version=version)) == one.send(task(version=version))


def test_each_client_has_a_p_of_its_own_drawn_uniformly() -> None:
    by_rounds = dropout(p_min=0.4)
    p = [by_rounds.probability(client_id, SEED) for client_id in range(2000)]
    assert kstest(p, "uniform", args=(0.4, 0.6)).pvalue > 0.001
    assert p[3] == stream(SEED, Stream.AVAILABILITY, 3).uniform(0.4, 1)


def test_all_clients_are_present_in_the_first_rounds() -> None:
    first, plain = (passage({"type": "dropout", "p": 0.3, "everyone_before": rounds}) for rounds in (2, 0))
    for client_id in range(20):
        for version in range(10):
            flight = task(client_id=client_id, version=version)
            assert first.send(flight) == ((flight,) if version < 2 else plain.send(flight))


def test_policies_receive_the_availability_of_later_rounds() -> None:
    assert dropout(p=0.3, everyone_before=1).probability(0, SEED) == 0.3
    settled = dropout(p_min=0.1, by="adversarial", everyone_before=1).settled(Written([[0], [9]]))
    assert [settled.probability(client_id, SEED) for client_id in (0, 1)] == pytest.approx([0.1, 1.0])
    assert settled.everyone_before == 1


def test_a_second_dropout_without_first_rounds_still_decides() -> None:
    way = passage({"type": "dropout", "p": 0.5, "everyone_before": 9}, {"type": "dropout", "name": "b", "p": 0.0})
    assert way.send(task(version=0))[0].declined


def test_a_dropout_in_time_has_no_first_rounds() -> None:
    with pytest.raises(
        UserError,
        match="everyone_before is 1, which counts rounds, but this dropout is over time; leave it out, or give p",
    ):
        dropout(on_s=3.0, off_s=2.0, everyone_before=1)
    with pytest.raises(UserError, match="everyone_before"):
        dropout(p=0.5, everyone_before=-1)


def test_adversarial_makes_clients_with_low_classes_rarely_available() -> None:
    # p_i = 0.1 + 0.9 c_i / 9
    population = Written([[0, 5], [9], [4, 7], [1, 2]])
    settled = dropout(p_min=0.1, by="adversarial").settled(population)
    assert [settled.probability(client_id, SEED) for client_id in range(4)] == pytest.approx([0.1, 1.0, 0.5, 0.2])


def test_adversarial_with_other_numbers_of_classes() -> None:
    settled = dropout(p_min=0.5, by="adversarial").settled(Written([[0], [1], [2]], classes=3))
    assert [settled.probability(client_id, SEED) for client_id in range(3)] == [0.5, 0.75, 1.0]
    with pytest.raises(UserError, match="at least 2 classes"):
        dropout(p_min=0.5, by="adversarial").settled(Written([[0]], classes=1))


def test_p_accepts_a_number_for_each_client() -> None:
    by_rounds = dropout(p_by_client=[0.1, 0.9])
    assert [by_rounds.probability(client_id, SEED) for client_id in (0, 1)] == [0.1, 0.9]
    assert by_rounds.settled(Written([[0], [1]])) == by_rounds
    with pytest.raises(UserError, match="p_by_client has 2 numbers, expected one for each of the 3 clients"):
        by_rounds.settled(Written([[0], [1], [2]]))


# --- in time, drawn ---


def test_a_client_is_as_the_last_of_its_chances_to_change_left_it() -> None:
    # On average 32 chances in a time slice of 32 / (1/3 + 1/2) s, each to be there with 3 / (3 + 2).
    slice_s = 32 / (1 / 3 + 1 / 2)
    chances = [(0.0, True)]
    for index in range(4):
        rng = draws().of_client(4, index)
        count = int(rng.poisson(32))
        at_s = sorted((slice_s * (index + rng.random(count))).tolist())
        chances += zip(at_s, (rng.random(count) < 0.6).tolist(), strict=True)
    in_time, its_draws = dropout(on_s=3.0, off_s=2.0), draws()
    for (from_s, is_there), (to_s, _) in pairwise(chances):
        assert in_time.is_available(4, (from_s + to_s) / 2, its_draws) is is_there
    assert in_time.is_available(4, 0.0, its_draws)  # and back to the first slice


@pytest.mark.parametrize("from_s", [10.0, 32 / (1 / 3 + 1 / 2) - 0.25], ids=["in a time slice", "into the next"])
def test_times_there_and_away_are_exponential(from_s: float) -> None:
    # With r = 1/3 + 1/2, half a second later: still there or again 0.6 + 0.4 e^(-r/2), come back 0.6 - 0.6 e^(-r/2).
    in_time, its_draws = dropout(on_s=3.0, off_s=2.0), draws()
    seen = Counter(
        tuple(in_time.is_available(client_id, at_s, its_draws) for at_s in (from_s, from_s + 0.5))
        for client_id in range(4000)
    )
    kept = exp(-(1 / 3 + 1 / 2) / 2)
    for before, expected in ((True, 0.6 + 0.4 * kept), (False, 0.6 - 0.6 * kept)):
        number = seen[before, True] + seen[before, False]
        assert abs(number / 4000 - (0.6 if before else 0.4)) < 4 * sqrt(0.24 / 4000)
        assert abs(seen[before, True] / number - expected) < 4 * sqrt(expected * (1 - expected) / number)


def test_a_late_time_costs_no_more_than_an_early_one() -> None:
    class Counted(ToxicRng):
        slices = 0

        @override
        def of_client(self, client_id: int, time_slice: int = 0) -> Generator:
            self.slices += 1
            return super().of_client(client_id, time_slice)

    its_draws = Counted(SEED, "toxic")
    dropout(on_s=0.001, off_s=0.001).is_available(0, 1e7, its_draws)
    assert its_draws.slices == 2


def test_a_client_is_present_for_its_share_of_the_time() -> None:
    # 3 / (3 + 1) of 40,000 s: about 10,000 pairs of times, whose share has a deviation of about 0.003.
    in_time, its_draws = dropout(on_s=3.0, off_s=1.0), draws()
    there = sum(in_time.is_available(0, float(at_s), its_draws) for at_s in range(40_000))
    assert abs(there / 40_000 - 0.75) < 4 * 0.004


def test_a_message_that_enters_or_exits_during_an_absence_is_lost() -> None:
    in_time = dropout(on_s=5.0, off_s=5.0)
    way = passage({"type": "dropout", "on_s": 5.0, "off_s": 5.0}, {"type": "latency", "delay": 3.0})
    lost = 0
    for number in range(300):
        sent_s = number / 4
        there = [in_time.is_available(0, at_s, draws(name="dropout")) for at_s in (sent_s, sent_s + 3.0)]
        assert len(way.send(message(number=number, sent_s=sent_s))) == all(there)
        lost += not all(there)
    assert 50 < lost < 290


def test_clients_are_absent_independently() -> None:
    in_time, its_draws = dropout(on_s=5.0, off_s=5.0), draws()
    seen = {
        tuple(in_time.is_available(client_id, float(at_s), its_draws) for at_s in range(50)) for client_id in range(20)
    }
    assert len(seen) == 20


def test_a_client_is_present_at_the_start_of_the_toxic() -> None:
    in_time, its_draws = dropout(on_s=1000.0, off_s=5.0, start_s=90.0), draws()
    early = dropout(on_s=1000.0, off_s=5.0)
    assert all(in_time.is_available(client_id, 90.0, its_draws) for client_id in range(50))
    for at_s in range(0, 5000, 100):
        assert in_time.is_available(1, 90.0 + at_s, its_draws) == early.is_available(1, float(at_s), draws())


# --- in time, recorded ---


def recorded(folder: Path, *rows: str) -> str:
    file = folder / "availability.csv"
    file.write_text("\n".join(["client,start_s,end_s", *rows]) + "\n", encoding="utf-8")
    return str(file)


def test_a_trace_gives_the_times_of_presence(tmp_path: Path) -> None:
    trace = recorded(tmp_path, "1,5,10", "0,0,4", "1,20.5,30")
    way = passage({"type": "dropout", "trace": trace})
    there = {
        client_id: [at_s for at_s in range(40) if way.send(message(client_id=client_id, sent_s=float(at_s)))]
        for client_id in (0, 1, 2)
    }
    assert there == {0: [0, 1, 2, 3], 1: [5, 6, 7, 8, 9, *range(21, 30)], 2: []}


def test_a_trace_is_read_once(tmp_path: Path) -> None:
    trace = recorded(tmp_path, "0,0,4")
    in_time = dropout(trace=trace)
    Path(trace).unlink()
    assert in_time.is_available(0, 3.0, draws()) and not in_time.is_available(0, 4.0, draws())


def test_every_affected_client_has_a_row(tmp_path: Path) -> None:
    in_time = dropout(trace=recorded(tmp_path, "0,0,4", "2,0,9"))
    population = Written([[0], [1], [2]])
    assert in_time.settled(population, (0, 2)) == in_time
    with pytest.raises(UserError, match="trace has no row for client 1; add one, or set clients to those in the trace"):
        in_time.settled(population)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["0,4,2"], "client 0 is available from 4 s to 2 s, expected an end after the start"),
        (["0,0,5", "0,4,6"], "client 0 is available from 4 s, expected at least 5 s, sorted and without overlap"),
        (["0,10,12", "0,4,6"], "client 0 is available from 4 s, expected at least 12 s, sorted and without overlap"),
        (["0,-1,2"], "client 0 is available from -1 s, expected at least 0 s, sorted and without overlap"),
        (["0.5,1,2"], "line 2: client is 0.5, expected a whole number"),
        (["0,1,2", "-1,1,2"], "client is -1, expected at least 0"),
        (["0,1,2", "1,,2"], "line 3: start_s is '', expected a number"),
        (["0,1,inf"], "line 2: end_s is inf, expected a finite number"),
        (["0,1"], "line 2 has 2 cells, expected client,start_s,end_s"),
        ([], "has no rows below its head, expected at least one"),
    ],
)
def test_an_unsorted_trace_is_refused(tmp_path: Path, rows: list[str], sentence: str) -> None:
    trace = recorded(tmp_path, *rows)
    with pytest.raises(UserError) as raised:
        dropout(trace=trace)
    assert str(raised.value).startswith(f"here (dropout): trace {trace}")
    assert sentence in str(raised.value)
