"""Statistics of reconstructed examples: distributions, differences and their intervals, by hand."""

from math import isnan
from typing import Any

import numpy as np
import pytest

from unstale.privacy.findings import Matches, difference, findings, label_distance
from unstale.privacy.image_similarity import PSNR, SSIM, Measure
from unstale.seeds import Generator, Stream, stream

APART = Measure(name="LPIPS", unit="", larger_is_closer=False, of=PSNR.of)


def rng() -> Generator:
    return stream(0, Stream.INVERSION, 0)


def matches(client_id: int, labels: list[int], **best: dict[str, list[float]]) -> Matches:
    pools = next(iter(best.values()))
    return Matches(
        client_id=client_id,
        labels=labels,
        best={
            measure: {pool: np.array(values) for pool, values in by_pool.items()} for measure, by_pool in best.items()
        },
        pool_examples=dict.fromkeys(pools, 10 * (client_id + 1)),
        label_distance=dict.fromkeys(pools, 0.25 * client_id),
    )


def test_a_difference_is_over_examples_and_its_interval_over_clients() -> None:
    # Client 3 has 1 and 3, client 7 has -1: (1 + 3 - 1) / 3. With the same client drawn twice, the mean is 2 or -1,
    # each in a quarter of all draws: they bound the interval.
    found = difference(np.array([1.0, -1.0, 3.0]), np.array([3, 7, 3]), rng())
    assert (found.mean, found.low, found.high) == (1.0, -1.0, 2.0)
    assert found.closer_share == pytest.approx(2 / 3)


def test_one_client_gives_no_result_about_others() -> None:
    found = difference(np.array([1.0, 2.0]), np.array([4, 4]), rng())
    assert found.mean == 1.5
    assert isnan(found.low) and isnan(found.high)


def test_equal_distances_count_half() -> None:
    found = difference(np.array([0.0, 0.0, 1.0, -1.0]), np.array([0, 0, 1, 1]), rng())
    assert found.closer_share == 0.5


def test_the_interval_is_narrow_where_clients_agree_and_repeats() -> None:
    clients, values = np.repeat(np.arange(30), 5), np.full(150, 0.5)
    found = difference(values, clients, rng())
    assert (found.low, found.high) == (0.5, 0.5)
    values = values + np.sin(np.arange(150))
    assert difference(values, clients, rng()) == difference(values, clients, rng())


def test_label_distance_by_hand() -> None:
    # Shares 1/2, 1/2, 0 against 1/4, 0, 3/4: (1/4 + 1/2 + 3/4) / 2.
    assert label_distance(np.array([0.5, 0.5, 0.0]), np.array([0, 2, 2, 2])) == 0.75
    assert label_distance(np.array([0.25, 0.0, 0.75]), np.array([2, 0, 2, 2])) == 0.0


def test_results_are_over_all_updates_and_by_class() -> None:
    found = findings(
        [
            matches(
                0,
                [1, 1],
                psnr={
                    "own": [10.0, 14.0],
                    "others": [8.0, 15.0],
                    "own_same_classes": [9.0, 13.0],
                    "same_classes": [9.0, 9.0],
                },
            ),
            matches(1, [2], psnr={"own": [12.0], "others": [12.0], "own_same_classes": [11.0], "same_classes": [20.0]}),
        ],
        [PSNR],
        rng(),
    )
    assert (found.updates, found.clients, found.examples) == (2, 2, 3)
    assert list(found.pool_examples) == ["own", "others", "own_same_classes", "same_classes"]
    assert set(found.pool_examples.values()) == {15.0}
    assert found.label_distance["own"] == 0.125
    (psnr,) = found.measures
    assert (psnr.measure, psnr.unit) == ("psnr", "dB")
    assert psnr.pools["own"].mean == psnr.pools["own"].median == 12.0
    assert psnr.pools["own"].p25 == 11.0
    assert psnr.closer["others"].mean == pytest.approx((2 - 1 + 0) / 3)
    assert psnr.closer["same_classes"].mean == pytest.approx((0 + 4 - 9) / 3)  # with as many own ones of each class
    assert list(psnr.closer) == ["others", "same_classes"]
    assert [(one.label, one.examples) for one in found.classes] == [(1, 2), (2, 1)]
    assert found.classes[0].means["psnr"] == {
        "own": 12.0,
        "others": 11.5,
        "own_same_classes": 11.0,
        "same_classes": 9.0,
    }


def test_for_distances_a_smaller_value_is_closer() -> None:
    pools: dict[str, Any] = {"own": [0.25], "others": [0.75], "own_same_classes": [0.25], "same_classes": [0.125]}
    found = findings([matches(0, [0], lpips=pools, ssim=pools)], [APART, SSIM], rng())
    assert [one.closer["others"].mean for one in found.measures] == [0.5, -0.5]
    assert [one.closer["same_classes"].mean for one in found.measures] == [-0.125, 0.125]


def test_a_pool_missing_from_an_update_is_left_out() -> None:
    found = findings(
        [
            matches(0, [1], psnr={"own": [10.0], "others": [8.0], "own_same_classes": [10.0], "same_classes": [9.0]}),
            matches(1, [2], psnr={"own": [12.0], "others": [12.0]}),
        ],
        [PSNR],
        rng(),
    )
    assert list(found.measures[0].pools) == ["own", "others"]
    assert list(found.measures[0].closer) == ["others"]
    assert list(found.pool_examples) == list(found.label_distance) == ["own", "others"]
