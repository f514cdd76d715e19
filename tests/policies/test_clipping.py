"""Norm clipping as a stage before any policy."""

import pytest
import torch

from unstale.policies import Policy, Step, create
from unstale.policies.policy import PolicyContext, PolicySettings
from unstale.policies.stages import wrapped


class Watching(Policy[PolicySettings]):
    """Stores the batches that it receives."""

    source = "for tests"
    training = "scaffold"
    sends_extra = True
    once_a_cycle = True
    memory = "all"
    needs_base_models = True

    def step(self, batch) -> Step:
        self.batch = batch
        return self.weighted(batch, torch.full((len(batch),), 1.0, dtype=torch.float64))

    @property
    def extra_d(self):
        return torch.ones(self.dimension)

    def state_dict(self):
        return {"seen": 3}

    def load_state_dict(self, state) -> None:
        self.loaded = state


def watching(dimension: int = 2) -> Watching:
    return Watching(PolicySettings(), PolicyContext(dimension=dimension, clients=9, device=torch.device("cpu")))


def test_only_updates_beyond_the_bound_are_scaled_down_to_it(make_batch) -> None:
    """|(3,4)| = 5 is halved by c = 2.5; |(0.6,0.8)| = 1 and |(2.5,0)| stay."""
    inner = watching()
    batch = make_batch([[3.0, 4.0], [0.6, 0.8], [2.5, 0.0]], staleness=[0, 1, 2])
    before = batch.matrix_Kd.clone()
    wrapped(inner, clip_norm=2.5).step(batch)
    torch.testing.assert_close(inner.batch.matrix_Kd, torch.tensor([[1.5, 2.0], [0.6, 0.8], [2.5, 0.0]]))
    assert torch.equal(batch.matrix_Kd, before)
    assert inner.batch.staleness_K is batch.staleness_K


def test_a_round_within_the_bound_is_passed_on_without_a_copy(make_batch) -> None:
    inner = watching()
    batch = make_batch([[3.0, 4.0]], staleness=[0])
    wrapped(inner, clip_norm=5.0).step(batch)
    assert inner.batch is batch


def test_the_memory_of_the_copy_is_reused(make_batch) -> None:
    inner = watching()
    policy = wrapped(inner, clip_norm=1.0)
    policy.step(make_batch([[3.0, 4.0], [5.0, 0.0]], staleness=[0, 0]))
    first = inner.batch.matrix_Kd
    policy.step(make_batch([[0.0, 9.0]], staleness=[0]))
    assert inner.batch.matrix_Kd.data_ptr() == first.data_ptr()
    assert inner.batch.matrix_Kd.tolist() == [[0.0, 1.0]]
    policy.step(make_batch([[0.0, 9.0]] * 3, staleness=[0] * 3))
    assert inner.batch.matrix_Kd.tolist() == [[0.0, 1.0]] * 3


def test_the_second_vectors_are_not_clipped(make_batch) -> None:
    inner = watching()
    extra_Kd = torch.tensor([[30.0, 40.0]])
    wrapped(inner, clip_norm=1.0).step(make_batch([[3.0, 4.0]], staleness=[0], extra_Kd=extra_Kd))
    assert inner.batch.extra_Kd is extra_Kd


def test_an_update_whose_square_overflows_float32_is_clipped(make_batch) -> None:
    inner = watching()
    wrapped(inner, clip_norm=5.0).step(make_batch([[3e30, -4e30], [1e-30, 0.0]], staleness=[0, 0]))
    torch.testing.assert_close(inner.batch.matrix_Kd, torch.tensor([[3.0, -4.0], [1e-30, 0.0]]))


def test_an_empty_round_is_passed_on(make_batch) -> None:
    policy = wrapped(create("fedavg", dimension=2, clients=3), clip_norm=1.0)
    batch = make_batch([[1.0, 1.0]], staleness=[0])
    empty = type(batch)(
        version=0,
        matrix_Kd=batch.matrix_Kd[:0],
        staleness_K=batch.staleness_K[:0],
        num_examples_K=batch.num_examples_K[:0],
        loss_K=batch.loss_K[:0],
        client_ids_K=batch.client_ids_K[:0],
    )
    assert policy.step(empty).direction_d.tolist() == [0.0, 0.0]


def test_a_stage_has_the_requirements_of_its_policy() -> None:
    inner = watching()
    policy = wrapped(inner, clip_norm=1.0)
    asked = ("training", "sends_extra", "once_a_cycle", "memory", "needs_base_models", "loops", "context")
    assert [getattr(policy, name) for name in asked] == [getattr(inner, name) for name in asked]
    assert torch.equal(policy.extra_d, torch.ones(2))


def test_the_state_of_a_stage_contains_the_state_of_its_policy() -> None:
    inner = watching()
    policy = wrapped(inner, clip_norm=1.0)
    assert policy.state_dict() == {"inner": {"seen": 3}}
    policy.load_state_dict({"inner": {"seen": 4}})
    assert inner.loaded == {"seen": 4}


def test_without_stages_the_policy_is_returned_unwrapped() -> None:
    inner = watching()
    assert wrapped(inner) is inner


@pytest.mark.parametrize("large", [70_000, 200_000])
def test_long_rows_are_measured_in_float64(large: int, make_batch) -> None:
    inner = watching(large)
    matrix = torch.full((1, large), 0.1)
    batch = make_batch(matrix.tolist(), staleness=[0])
    wrapped(inner, clip_norm=1.0).step(batch)
    assert float(inner.batch.matrix_Kd.double().norm()) == pytest.approx(1.0, abs=1e-6)
