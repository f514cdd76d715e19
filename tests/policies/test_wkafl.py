"""WKAFL: the golden vectors, single steps by hand, and the limits of float32."""

import math
from dataclasses import replace

import pytest
import torch

from support.updates import GOLDEN, GOLDEN_MODEL, GOLDEN_RATE
from unstale.errors import UserError
from unstale.policies import Policy, UpdateBatch, create


def golden(**settings: object) -> Policy:
    subject = create("wkafl", dimension=4, clients=5, clip_bound=1.2, gamma=0.1, **settings)
    subject.load_state_dict({"previous_d": torch.tensor([0.5, 0.5, 0.0, 0.0]), "stage": 1})
    return subject


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (0.00454578, -0.22409157, 0.3, 0.0)),
        ({"stage_two_round": 0, "stage_two_bound": 1.0}, (0.02789700, -0.21797945, 0.3, 0.0)),
        ({"no_gradient_selection": True}, (0.02770696, -0.22552054, 0.27957370, -0.00680877)),
        ({"no_staleness": True}, (0.00655151, -0.22267750, 0.29753142, -0.00082286)),
        ({"no_non_iidness": True}, (0.00789750, -0.21579501, 0.3, 0.0)),
    ],
)
def test_the_next_model_matches_the_golden_vector(settings: dict[str, object], expected: tuple[float, ...]) -> None:
    step = golden(**settings).step(GOLDEN)
    model_d = GOLDEN_MODEL - GOLDEN_RATE * step.rate_factor * step.direction_d
    torch.testing.assert_close(model_d, torch.tensor(expected), atol=1e-6, rtol=0)


def test_estimate_and_weights_match_the_golden_vector() -> None:
    subject = golden()
    weights_K = subject.step(GOLDEN).weights_K
    estimate_d = torch.tensor([0.72293041, 0.25520540, 0.20426300, 0.06808767])
    torch.testing.assert_close(subject.state_dict()["previous_d"], estimate_d, atol=1e-6, rtol=0)
    expected_K = torch.tensor([0.76135538, 0.23864462, 0.0], dtype=torch.float64)
    torch.testing.assert_close(weights_K, expected_K, atol=1e-6, rtol=0)


def plane(**settings: object) -> Policy:
    return create("wkafl", dimension=2, clients=9, **settings)


def test_updates_that_point_away_from_the_estimate_are_excluded(make_batch) -> None:
    # e = ((2, 0) + (2, 0) + (-1, 0)) / 3 = (1, 0): cosines 1, 1, -1.
    step = plane().step(make_batch([[2.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], staleness=[0, 0, 0]))
    assert step.weights_K.tolist() == [0.5, 0.5, 0.0]
    assert step.metrics == {"stage": 1, "selected": 2}
    torch.testing.assert_close(step.direction_d, torch.tensor([2.0, 0.0]))


def test_more_similar_updates_weigh_more_by_the_exponential_of_beta(make_batch) -> None:
    # e = ((3, 0) + (0, 4)) / 2 = (1.5, 2): cosines 0.6 and 0.8.
    step = plane(beta=5.0).step(make_batch([[3.0, 0.0], [0.0, 4.0]], staleness=[0, 0]))
    ratio = float(step.weights_K[1] / step.weights_K[0])
    assert ratio == pytest.approx(math.exp(5.0 * (0.8 - 0.6)), rel=1e-6)


@pytest.mark.parametrize(("threshold", "selected"), [("inclusive", 2), ("strict", 1)])
def test_a_cosine_at_the_threshold_is_selected(make_batch, threshold: str, selected: int) -> None:
    # Only the fresh (1, 0) makes the estimate, the other is 2,000 rounds old: cosines 1 and 0.
    batch = make_batch([[1.0, 0.0], [0.0, 1.0]], staleness=[0, 5000])
    step = plane(similarity_min=0.0, threshold=threshold).step(batch)
    assert int((step.weights_K > 0).sum()) == selected


def test_without_selected_updates_the_direction_is_the_estimate(make_batch) -> None:
    # e = ((1, 0) + (0, 1)) / 2: both cosines are 1/sqrt 2 = 0.707.
    step = plane(similarity_min=0.75).step(make_batch([[1.0, 0.0], [0.0, 1.0]], staleness=[0, 0]))
    assert step.direction_d.tolist() == [0.5, 0.5]
    assert step.weights_K.tolist() == [0.5, 0.5]


def test_updates_that_cancel_give_no_step_in_either_stage(make_batch) -> None:
    batch = make_batch([[1.0, 2.0], [-1.0, -2.0]], staleness=[0, 0])
    for settings in ({}, {"stage_two_round": 0}, {"similarity_min": -1.0, "stage_two_round": 0}):
        assert plane(**settings).step(batch).direction_d.tolist() == [0.0, 0.0], settings


def test_an_estimate_within_rounding_selects_nothing(make_batch) -> None:
    # In float32 the sum of the three is not exactly 0, and its direction is arbitrary.
    rows = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows, -(rows[0] + rows[1])[None]])
    subject = create("wkafl", dimension=1000, clients=3)
    step = subject.step(make_batch(rows.tolist(), staleness=[0, 0, 0]))
    assert float(step.direction_d.norm()) < 1e-5
    assert step.weights_K.tolist() == [1 / 3] * 3


@pytest.mark.parametrize(("zero_gradient", "weights"), [("dissimilar", [1.0, 0.0]), ("similar", [0.5, 0.5])])
def test_a_zero_vector_is_unlike_or_like_everything(make_batch, zero_gradient: str, weights: list[float]) -> None:
    # e = (1, 0), and the cosine of (2, 0) is 1.
    step = plane(zero_gradient=zero_gradient).step(make_batch([[2.0, 0.0], [0.0, 0.0]], staleness=[0, 0]))
    assert step.weights_K.tolist() == weights


def test_the_next_round_receives_a_share_of_the_estimate_or_the_direction(make_batch) -> None:
    # First round: e = (1, 0), direction (2, 0), as in the test above of updates that point away.
    first = make_batch([[2.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], staleness=[0, 0, 0])
    second = make_batch([[0.0, 1.0]], staleness=[0], version=1)
    for momentum, share in (("estimate", 1.0), ("aggregate", 2.0)):
        subject = plane(momentum=momentum, alpha=0.5)
        subject.step(first)
        torch.testing.assert_close(subject.step(second).direction_d, torch.tensor([0.5 * share, 1.0]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1 / (0.5 * 2 + 1)),
        ({"rate_staleness": "one-based"}, 1 / (0.5 * 3 + 1)),
        ({"no_staleness": True}, 1.0),
        ({"no_gradient_selection": True}, 1 / (0.5 * 2 + 1)),
    ],
)
def test_the_rate_decreases_with_the_least_staleness_of_the_round(
    make_batch, settings: dict[str, object], expected: float
) -> None:
    step = plane(gamma=0.5, **settings).step(make_batch([[1.0, 0.0], [1.0, 0.0]], staleness=[7, 2]))
    assert step.rate_factor == expected


def test_stage_two_clips_vectors_to_b_times_the_estimate_after_similarities(make_batch) -> None:
    # e = ((9, 0) + (1, 0)) / 2 = (5, 0); with B = 1/2 the first is cut to 2.5: (2.5 + 1) / 2.
    batch = make_batch([[9.0, 0.0], [1.0, 0.0]], staleness=[0, 0])
    step = plane(stage_two_round=0, stage_two_bound=0.5).step(batch)
    torch.testing.assert_close(step.direction_d, torch.tensor([1.75, 0.0]))
    assert step.weights_K.tolist() == [0.5, 0.5]


def test_stage_two_begins_by_version_by_loss_or_halfway_and_never_ends(make_batch) -> None:
    batch = make_batch([[9.0, 0.0], [1.0, 0.0]], staleness=[0, 0])

    def stages(subject: Policy, losses: list[float]) -> list[int]:
        seen = []
        for version, loss in enumerate(losses):
            subject.step(replace(batch, version=version, loss_K=torch.tensor([loss - 0.5, loss + 0.5])))
            seen.append(subject.state_dict()["stage"])
        return seen

    assert stages(plane(stage_two_round=2), [9.0] * 4) == [1, 1, 2, 2]
    assert stages(plane(stage_two_loss=1.0), [3.0, 1.25, 1.0, 3.0]) == [1, 1, 2, 2], "the average, not the sum"
    assert stages(plane(rounds=5), [9.0] * 4) == [1, 1, 2, 2]
    assert stages(plane(), [0.5] * 4) == [1, 1, 1, 1]


def test_both_rules_together_are_refused() -> None:
    message = "'stage_two_loss' and 'stage_two_round' are both set, expected at most one"
    with pytest.raises(UserError, match=message):
        plane(stage_two_loss=1.0, stage_two_round=5)


def test_the_profile_reference_matches_the_released_code() -> None:
    settings = plane(profile="reference").settings
    assert (settings.momentum, settings.rate_staleness, settings.threshold) == ("aggregate", "one-based", "strict")


def test_an_empty_round_changes_nothing(make_batch) -> None:
    subject = plane()
    subject.step(make_batch([[1.0, 0.0]], staleness=[0]))
    before = subject.state_dict()["previous_d"]
    empty = UpdateBatch(
        version=1,
        matrix_Kd=torch.empty(0, 2),
        staleness_K=torch.empty(0, dtype=torch.int64),
        num_examples_K=torch.empty(0, dtype=torch.int64),
        loss_K=torch.empty(0),
        client_ids_K=torch.empty(0, dtype=torch.int64),
    )
    assert subject.step(empty).direction_d.tolist() == [0.0, 0.0]
    assert torch.equal(subject.state_dict()["previous_d"], before)


def test_an_estimate_that_overflows_float32_is_not_stored(make_batch) -> None:
    subject = plane(alpha=1.0)
    subject.load_state_dict({"previous_d": torch.tensor([3e38, 0.0]), "stage": 1})
    subject.step(make_batch([[3e38, 0.0]], staleness=[0]))
    assert subject.state_dict()["previous_d"].tolist() == torch.tensor([3e38, 0.0]).tolist()


def test_the_stored_estimate_does_not_alias_the_result(make_batch) -> None:
    batch = make_batch([[1.0, 0.5]], staleness=[0])
    for momentum in ("estimate", "aggregate"):
        subject = plane(momentum=momentum)
        subject.step(batch).direction_d.fill_(math.nan)
        assert subject.state_dict()["previous_d"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("left_over", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("clip_bound", [None, 0.05])
def test_updates_that_nearly_cancel_the_share_of_the_estimate_keep_their_direction(
    make_batch, left_over: float, clip_bound: float | None
) -> None:
    """|gt|^2 from products has no correct digit at 1e-4: the weights must still be those of float64."""
    generator = torch.Generator().manual_seed(5)
    alpha, beta, previous_d = 0.5, 10.0, torch.randn(3000, generator=generator)
    common_d = torch.randn(3000, generator=generator)
    rows_Kd = torch.stack(
        [-alpha * previous_d + left_over * (common_d + 0.5 * torch.randn(3000, generator=generator)) for _ in range(4)]
    )
    subject = create("wkafl", dimension=3000, clients=4, alpha=alpha, clip_bound=clip_bound)
    subject.load_state_dict({"previous_d": previous_d, "stage": 1})
    step = subject.step(make_batch(rows_Kd.tolist(), staleness=[0, 0, 0, 0]))
    fused_Kd = rows_Kd.double() + alpha * previous_d.double()
    if clip_bound is not None:
        fused_Kd *= (clip_bound / fused_Kd.norm(dim=1, keepdim=True)).clamp(max=1)
    estimate_d = fused_Kd.mean(0)
    raw_K = torch.exp(beta * torch.nn.functional.cosine_similarity(fused_Kd, estimate_d[None]))
    # The sums are float32: to 3e-7 of the rows, by the processor, which is 3e-7 / left_over of the remainder.
    torch.testing.assert_close(step.weights_K, raw_K / raw_K.sum(), atol=3e-6 + 3e-7 / left_over, rtol=0)


def test_a_step_reports_the_stage_and_no_selected_update_where_it_follows_the_estimate(make_batch) -> None:
    subject = plane(stage_two_round=1, no_gradient_selection=True)
    assert subject.step(make_batch([[1.0, 0.0]], staleness=[0])).metrics == {"stage": 1, "selected": 0}
    later = replace(make_batch([[1.0, 0.0]], staleness=[0]), version=1)
    assert subject.step(later).metrics == {"stage": 2, "selected": 0}
