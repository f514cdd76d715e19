"""The clients of a group or a toxic."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError

from unstale.errors import UserError
from unstale.toxics.client_filter import EXPECTED, ClientFilter


@dataclass(frozen=True)
class Clients:
    """All hold class 0, the first the most; only clients 3, 7 and 5 hold class 1, in this order."""

    clients: int = 10
    classes: int = 3

    def holders(self, label: int) -> Sequence[int]:
        return (range(self.clients), (3, 7, 5), ())[label]

    def smallest_class(self, client_id: int) -> int:
        return client_id % 2


def resolved(data: Any, *, seed: int = 0, name: str = "g", among: frozenset[int] | None = None) -> set[int]:
    return set(ClientFilter.model_validate(data).resolve(Clients(), seed, name, among))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("all", set(range(10))),
        ([0, 3], {0, 3}),
        ([0, "3-5", "8"], {0, 3, 4, 5, 8}),
        (["0-9"], set(range(10))),
        ({"holding": 1}, {3, 5, 7}),
        ({"holding": 1, "top": 2}, {3, 7}),
        ({"holding": 1, "top": 9}, {3, 5, 7}),
        ({"smallest_class": 1}, {1, 3, 5, 7, 9}),
    ],
)
def test_clients_are_selected_by_id_or_by_their_data(data: Any, expected: set[int]) -> None:
    assert resolved(data) == expected


@pytest.mark.parametrize(("share", "count"), [(0.04, 1), (0.1, 1), (0.14, 1), (0.15, 2), (0.5, 5), (1, 10)])
def test_a_share_is_rounded_half_up_and_one_client_at_least(share: float, count: int) -> None:
    assert len(resolved({"share": share})) == count


def test_a_share_is_drawn_once_from_seed_and_name() -> None:
    assert resolved({"share": 0.5}) == resolved({"share": 0.5})
    by_seed = {frozenset(resolved({"share": 0.5}, seed=seed)) for seed in range(10)}
    by_name = {frozenset(resolved({"share": 0.5}, name=f"g{n}")) for n in range(10)}
    assert len(by_seed) > 5
    assert len(by_name) > 5


def test_every_client_is_as_likely_to_be_in_a_share() -> None:
    # 2,000 draws of 3 of 10: Binomial(2000, 0.3), sd 20.5; four of them either way.
    counts = Counter(client for seed in range(2000) for client in resolved({"share": 0.3}, seed=seed))
    assert sorted(counts) == list(range(10))
    assert all(abs(count - 600) < 82 for count in counts.values())


def test_a_filter_within_a_group_selects_among_its_clients() -> None:
    group = frozenset({2, 3, 4, 5})
    assert resolved("all", among=group) == group
    assert resolved([0, "4-9"], among=group) == {4, 5}
    assert resolved({"holding": 1, "top": 2}, among=group) == {3, 5}
    half = resolved({"share": 0.5}, among=group)
    assert len(half) == 2
    assert half < group


@pytest.mark.parametrize(
    ("data", "among", "sentence"),
    [
        (
            [3, 10],
            None,
            "clients is [3, 10], but client 10 is none of the 10 clients of this run, whose ids are 0 to 9",
        ),
        (
            ["5-12"],
            None,
            "clients is [5-12], but client 12 is none of the 10 clients of this run, whose ids are 0 to 9",
        ),
        ([8], frozenset({1}), "clients is [8], which matches nobody; name others"),
        ({"holding": 2}, None, "clients is {holding: 2}, which matches nobody; name others"),
        (
            {"holding": 3, "top": 4},
            None,
            "clients is {holding: 3, top: 4}, but the data has 3 classes, expected one of 0 to 2",
        ),
        ({"smallest_class": 2}, None, "clients is {smallest_class: 2}, which matches nobody; name others"),
    ],
)
def test_unknown_clients_get_a_one_sentence_error(data: Any, among: frozenset[int] | None, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        resolved(data, among=among)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "data",
    [
        "everyone",
        [],
        [True],
        [1.5],
        [-1],
        ["5-3"],
        ["-3"],
        ["a-b"],
        ["1-2-3"],
        ["٣"],  # a digit, but no id
        5,
        {},
        {"share": 0},
        {"share": 1.1},
        {"share": "0.5"},
        {"share": float("nan")},
        {"holding": -1},
        {"holding": 5, "top": 0},
        {"holding": 5, "share": 0.5},
        {"top": 5},
    ],
)
def test_an_invalid_filter_is_refused_with_the_valid_forms(data: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        ClientFilter.model_validate(data)
    (error,) = raised.value.errors()
    assert error["msg"] == EXPECTED


@pytest.mark.parametrize("data", ["all", [0, "3-5"], {"share": 0.25}, {"holding": 5, "top": 10}, {"smallest_class": 1}])
def test_plain_data_restores_an_equal_filter(data: Any) -> None:
    audience = ClientFilter.model_validate(data)
    assert ClientFilter.model_validate(audience.model_dump()) == audience
    assert ClientFilter.model_validate_json(audience.model_dump_json(exclude_none=True)) == audience
