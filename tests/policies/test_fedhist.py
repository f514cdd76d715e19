"""FedHist: the golden vectors, its parts by hand, and the bounds of its memory."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from unstale.policies import Policy, UpdateBatch, create

RATE = 0.1


def arrivals(
    version: int, rows: Sequence[Sequence[float]], clients: Sequence[int], staleness: Sequence[int]
) -> UpdateBatch:
    count = len(clients)
    return UpdateBatch(
        version=version,
        matrix_Kd=torch.tensor(rows).reshape(count, -1) if count else torch.empty(0, 2),
        staleness_K=torch.tensor(staleness, dtype=torch.int64),
        num_examples_K=torch.ones(count, dtype=torch.int64),
        loss_K=torch.ones(count),
        client_ids_K=torch.tensor(clients, dtype=torch.int64),
    )


def plane(clients: int = 9, **settings: Any) -> Policy:
    return create("fedhist", dimension=2, clients=clients, **settings)


def directions(subject: Policy, *rounds: tuple[Sequence[Sequence[float]], Sequence[int], Sequence[int]]) -> list:
    return [subject.step(arrivals(version, *each)).direction_d.tolist() for version, each in enumerate(rounds)]


GOLDEN_ROWS = [[1.0, 0.0, 0.0, 0.0], [0.6, 0.8, 0.0, 0.0], [0.0, -0.5, 1.5, 0.5]]


def golden_policy(**settings: Any) -> Policy:
    subject = create("fedhist", dimension=4, clients=5, h=2, **settings)
    history_nd = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    subject.load_state_dict(
        {
            **subject.state_dict(),
            "history_nd": history_nd,
            "history_lengths_n": history_nd.double().norm(dim=1),
            "pushed": 2,
            "utility_N": [0.4, 0.0, 0.0, 0.0, -0.2],
        }
    )
    return subject


def test_the_next_model_matches_the_golden_vector() -> None:
    subject = golden_policy()
    step = subject.step(arrivals(2, GOLDEN_ROWS, [2, 0, 4], [0, 1, 3]))
    weights_K = torch.tensor([0.46269772, 0.36558881, 0.17171347], dtype=torch.float64)
    torch.testing.assert_close(step.weights_K, weights_K, atol=1e-8, rtol=0)
    expected_d = torch.tensor([-0.00454471, -0.24699781, 0.26051966, -0.01316011])
    model_d = torch.tensor([0.1, -0.2, 0.3, 0.0]) - RATE * step.direction_d
    torch.testing.assert_close(model_d, expected_d, atol=1e-6, rtol=0)
    newest_d = subject.state_dict()["history_nd"][0]
    assert torch.equal(newest_d, step.direction_d), "it takes the place of the oldest"
    assert float(newest_d.norm()) == pytest.approx(1.21943747, abs=1e-6)


def test_without_normalisation_the_direction_is_the_golden_sum() -> None:
    step = golden_policy(ina=False).step(arrivals(2, GOLDEN_ROWS, [2, 0, 4], [0, 1, 3]))
    expected_d = torch.tensor([0.68205100, 0.30661431, 0.25757021, 0.08585674])
    torch.testing.assert_close(step.direction_d, expected_d, atol=1e-6, rtol=0)


def test_the_utilities_match_the_golden_vector() -> None:
    """Round 2 is judged in round 4, h = 2. S: client 1's own row, and client 0's of round 3 from version 2."""
    subject = create("fedhist", dimension=4, clients=5, h=2)
    target = [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    subject.load_state_dict({**subject.state_dict(), "utility_N": [0.4, 0.0, 0.0, 0.0, -0.2]})
    subject.step(arrivals(2, target, [1, 3, 4], [0, 3, 1]))
    subject.step(arrivals(3, [[0.0, 1.0, 0.0, 0.0]], [0], [1]))
    subject.step(arrivals(4, [[1.0, 0.0, 0.0, 0.0]], [2], [1]))
    expected = [0.4, 0.06856352, 0.0, 0.09401175, -0.15702280]
    assert subject.state_dict()["utility_N"] == pytest.approx(expected, abs=1e-7)


def test_utilities_that_compare_with_later_rounds_match_those_computed_by_hand() -> None:
    """As above, but S has client 0's row of round 3 only: |S| = 1, and no row is compared with itself."""
    subject = create("fedhist", dimension=4, clients=5, h=2, compared_with="later")
    target = [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    subject.load_state_dict({**subject.state_dict(), "utility_N": [0.4, 0.0, 0.0, 0.0, -0.2]})
    subject.step(arrivals(2, target, [1, 3, 4], [0, 3, 1]))
    subject.step(arrivals(3, [[0.0, 1.0, 0.0, 0.0]], [0], [1]))
    subject.step(arrivals(4, [[1.0, 0.0, 0.0, 0.0]], [2], [1]))
    decay = 2 / math.e
    above = math.sqrt(0.5) - 0.3  # of clients 1 and 3; the cosine of client 4 is 0
    expected = [0.4, 0.2 * above * (1 - decay), 0.0, 0.2 * above * (1 - decay**4), 0.8 * -0.2 + 0.2 * -0.3 * decay**2]
    assert subject.state_dict()["utility_N"] == pytest.approx(expected, abs=1e-7)


def test_an_update_is_compared_with_itself_unless_only_later_ones_count() -> None:
    """The only update from the model of round 0 is that of round 0 itself: its cosine is 1, or there is none."""
    utilities = []
    for compared_with in ("all", "later"):
        subject = plane(h=1, compared_with=compared_with)
        subject.step(arrivals(0, [[1.0, 0.0]], [0], [0]))
        subject.step(arrivals(1, [[0.0, 1.0]], [1], [2]))
        utilities.append(subject.state_dict()["utility_N"][0])
    assert utilities == [pytest.approx(0.2 * (1 - 0.3) * (1 - 2 / math.e)), 0.0]


def test_an_update_is_compared_with_the_least_similar_past_direction() -> None:
    # The history is (2, 0), then (2, 0) and (0, 3): (0, 1) is least like (2, 0), and (1, 0) least like (0, 3).
    assert directions(
        plane(h=5, alpha=0.5, ina=False),
        ([[2.0, 0.0]], [0], [0]),
        ([[-1.0, 3.0]], [1], [0]),  # + 0.5 * (2, 0)
        ([[0.0, 1.0]], [2], [0]),  # + 0.5 * (2, 0)
        ([[3.0, -1.0]], [3], [0]),  # least like (0, 3): + 0.5 * (0, 3)
    ) == [[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [3.0, 0.5]]


def test_of_equally_dissimilar_directions_the_most_recent_counts() -> None:
    # The history is (1, 0), (3, 0), (2, 0): the cosine of any row with them is the same.
    alone = {"h": 3, "ina": False, "alpha": 1.0}
    subject = plane(**alone)
    subject.load_state_dict(
        {
            **subject.state_dict(),
            "history_nd": torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]),
            "history_lengths_n": torch.tensor([1.0, 3.0, 2.0]).double(),
            "pushed": 3,
        }
    )
    assert subject.step(arrivals(3, [[-5.0, 1.0]], [0], [0])).direction_d.tolist() == [-3.0, 1.0]
    # Now (-3, 1) replaces (1, 0), then (3, 0), (2, 0).
    assert subject.step(arrivals(4, [[-1.0, 1.0]], [0], [0])).direction_d.tolist() == [1.0, 1.0]


def test_long_equal_directions_are_equally_dissimilar_at_any_position() -> None:
    """The products of equal rows may differ in the last bit by their place in the matrix product."""
    generator = torch.Generator().manual_seed(2)
    dimension, held = 5000, 7
    history_nd = torch.randn(1, dimension, generator=generator).repeat(held, 1)
    history_nd = history_nd * 2.0 ** torch.arange(held)[:, None]  # exactly parallel, and yet distinguished
    for newest in range(held):
        subject = create("fedhist", dimension=dimension, clients=9, h=held, ina=False, alpha=1.0)
        subject.load_state_dict(
            {
                **subject.state_dict(),
                "history_nd": history_nd,
                "history_lengths_n": history_nd.double().norm(dim=1) * (1 + 1e-8 * torch.arange(held)),
                "pushed": held + newest + 1,
            }
        )
        g_d = torch.randn(dimension, generator=generator)
        fused_d = subject.step(arrivals(9, g_d[None].tolist(), [0], [0])).direction_d - g_d
        torch.testing.assert_close(fused_d, history_nd[newest], atol=1e-5, rtol=1e-5)


def test_weights_add_utility_to_staleness_and_are_never_negative() -> None:
    subject = plane(utility_weight=0.5)
    subject.load_state_dict({**subject.state_dict(), "utility_N": [1.0, 0.0, -9.0, *[0.0] * 6]})
    step = subject.step(arrivals(0, [[1.0, 0.0]] * 3, [0, 1, 2], [1, 0, 0]))
    raw = [(math.e / 2) ** -2 + 0.5, (math.e / 2) ** -1, 0.0]
    assert step.weights_K.tolist() == pytest.approx([value / sum(raw) for value in raw], rel=1e-12)


def test_weights_that_are_all_zero_become_uniform() -> None:
    subject = plane()
    subject.load_state_dict({**subject.state_dict(), "utility_N": [-99.0] * 9})
    step = subject.step(arrivals(0, [[1.0, 0.0]] * 2, [0, 1], [0, 5]))
    assert step.weights_K.tolist() == [0.5, 0.5]


def test_the_direction_has_the_mean_length_of_the_updates() -> None:
    # (3, 0) and (0, 5) average to (1.5, 2.5); the mean length is 4.
    (raw,) = directions(plane(haa="off"), ([[3.0, 0.0], [0.0, 5.0]], [0, 1], [0, 0]))
    scale = 4 / math.hypot(1.5, 2.5)
    assert raw == pytest.approx([1.5 * scale, 2.5 * scale], rel=1e-6)


def test_fused_lengths_are_measured_after_adding_the_past_direction() -> None:
    # History (2, 0). The row (0, 1) becomes (1, 1), of length sqrt 2, in place of 1.
    first, second = ([[2.0, 0.0]], [0], [0]), ([[0.0, 1.0]], [1], [0])
    for norms, length in (("raw", 1.0), ("fused", math.sqrt(2))):
        *_, direction = directions(plane(h=1, alpha=0.5, ina_norms=norms), first, second)
        assert direction == pytest.approx([length / math.sqrt(2)] * 2, rel=1e-6)


def test_updates_that_cancel_are_not_rescaled_to_full_length() -> None:
    rows = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows, -(rows[0] + rows[1])[None]])
    step = create("fedhist", dimension=1000, clients=3, h=1).step(arrivals(0, rows.tolist(), [0, 1, 2], [0, 0, 0]))
    assert float(step.direction_d.norm()) < 1e-4, "their average is nothing but rounding"


def test_an_empty_round_keeps_the_model_and_counts_for_the_utilities() -> None:
    subject = plane(h=2, ina=False)
    subject.step(arrivals(0, [[1.0, 0.0]], [0], [0]))
    assert subject.step(arrivals(1, [], [], [])).direction_d.tolist() == [0.0, 0.0]
    assert subject.state_dict()["pushed"] == 1
    subject.step(arrivals(2, [], [], []))
    # Judged in round 2: S = its own row, the cosine 1: U = 0.2 * (1 - 0.3) * (1 - 2/e) * 1.
    expected = 0.2 * 0.7 * (1 - 2 / math.e)
    assert subject.state_dict()["utility_N"][0] == pytest.approx(expected, rel=1e-6)


def test_a_round_without_updates_from_its_model_gets_no_utility() -> None:
    subject = plane(h=1)
    subject.step(arrivals(1, [[1.0, 0.0]], [0], [1]))
    subject.step(arrivals(2, [[1.0, 0.0]], [1], [2]))
    assert subject.state_dict()["utility_N"] == [0.0] * 9


@pytest.mark.parametrize(
    ("clients", "round_size", "h"), [(100, 10, 5), (1000, 10, 50), (9, 4, 1), (10, 2, 3), (3, 10, 1), (100, 12, 4)]
)
def test_the_history_window_is_n_over_2k_rounds_rounded_half_up(clients: int, round_size: int, h: int) -> None:
    assert plane(clients, round_size=round_size).state_dict()["h"] == h


def test_an_unknown_round_size_is_taken_from_the_first_updates() -> None:
    subject = plane(clients=12)
    subject.step(arrivals(0, [], [], []))
    assert subject.state_dict()["h"] == 0
    subject.step(arrivals(1, [[1.0, 0.0]] * 2, [0, 1], [0, 0]))
    assert subject.state_dict()["h"] == 3


def test_rounds_are_stored_for_h_rounds_in_reused_memory() -> None:
    asked: list[tuple[int, int]] = []

    def allocate(rows: int, columns: int) -> torch.Tensor:
        asked.append((rows, columns))
        return torch.zeros(rows, columns)

    subject = plane(h=3, allocate=allocate)
    for version in range(80):
        count = 1 + version % 4
        subject.step(arrivals(version, [[1.0, 1.0]] * count, range(count), [0] * count))
        assert len(subject.state_dict()["rounds"]) <= 3
        if version == 40:
            so_far = len(asked)
    assert len(asked) == so_far
    assert all(columns == 2 and rows <= 4 for rows, columns in asked)


@pytest.mark.parametrize(
    ("settings", "history", "rows"),
    [
        ({}, 2, 2),
        ({"egs": False}, 0, 2),
        ({"alpha": 0.0}, 0, 2),
        ({"haa": "staleness"}, 2, 0),
        ({"haa": "off"}, 2, 0),
        ({"utility_weight": 0.0}, 2, 0),
    ],
)
def test_data_that_an_option_disables_is_not_stored(settings: dict[str, Any], history: int, rows: int) -> None:
    subject = plane(h=2, **settings)
    for version in range(5):
        subject.step(arrivals(version, [[1.0, 0.5]], [0], [0]))
    state = subject.state_dict()
    assert (len(state["history_nd"]), len(state["rows_Md"])) == (history, rows)


def test_the_stored_direction_aliases_neither_the_result_nor_the_matrix() -> None:
    subject, batch = plane(h=2), arrivals(0, [[3.0, 4.0]], [0], [0])
    subject.step(batch).direction_d.fill_(math.nan)
    batch.matrix_Kd.fill_(math.nan)
    state = subject.state_dict()
    assert state["history_nd"].tolist() == [[3.0, 4.0]]
    assert state["rows_Md"].tolist() == [[3.0, 4.0]]


def test_a_direction_that_overflows_float32_is_not_stored() -> None:
    subject = plane(h=2, ina=False, alpha=1.0)
    subject.load_state_dict(
        {
            **subject.state_dict(),
            "history_nd": torch.tensor([[3e38, 0.0]]),
            "history_lengths_n": torch.tensor([3e38]).double(),
            "pushed": 1,
        }
    )
    subject.step(arrivals(1, [[3e38, 0.0]], [0], [0]))
    assert subject.state_dict()["pushed"] == 1


def test_utilities_of_long_updates_match_float64() -> None:
    """Twenty rounds of 20,000 parameters, each utility from the equations."""
    generator = torch.Generator().manual_seed(4)
    dimension, clients, size, h = 20_000, 12, 3, 2
    subject = create("fedhist", dimension=dimension, clients=clients, h=h)
    common_d = torch.randn(dimension, generator=generator)
    base, seen, expected = [0] * clients, [], [0.0] * clients
    for version in range(20):
        ids = torch.randperm(clients, generator=generator)[:size].tolist()
        rows = common_d + torch.randn(size, dimension, generator=generator)
        staleness = [version - base[client] for client in ids]
        subject.step(arrivals(version, rows.tolist(), ids, staleness))
        seen.append([(c, s + 1, version - s, g.double()) for c, s, g in zip(ids, staleness, rows, strict=True)])
        for client in ids:
            base[client] = version + 1
        fresh = [g for records in seen[-h - 1 :] for _, _, b, g in records if b == version - h]
        if version < h or not fresh:
            continue
        mean = torch.stack(fresh).mean(0)
        for client, tau1, _, g in seen[version - h]:
            sim = float(g @ mean / (g.norm() * mean.norm()))
            old = (math.e / 2) ** -tau1
            utility = (sim - 0.3) * (1 - old if sim >= 0.3 else old) * len(fresh)
            expected[client] += 0.2 * (utility - expected[client])
    assert any(value != 0 for value in expected)
    assert subject.state_dict()["utility_N"] == pytest.approx(expected, abs=1e-6)


def test_a_step_reports_the_distribution_of_the_utilities_over_the_clients() -> None:
    subject = plane(clients=4)
    subject.load_state_dict({**subject.state_dict(), "utility_N": [1.0, 0.0, -0.5, 0.5]})
    step = subject.step(arrivals(0, [[1.0, 0.0]], [0], [0]))  # its utility is known later
    assert step.metrics == {"utility_mean": 0.25, "utility_min": -0.5, "utility_max": 1.0}
    assert plane(haa="off").step(arrivals(0, [[1.0, 0.0]], [0], [0])).metrics == {}
