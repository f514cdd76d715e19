"""What holds for every registered policy, and the property tests of algorithms.md, appendix B."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unstale.policies import UpdateBatch, create, names
from unstale.seeds import Stream, stream

DIMENSION = 5
CLIENTS = 9

ORDER_MATTERS = {"fedasync"}  # each client's model is mixed into what the ones before it made
STEPS_LESS_THAN_THE_AVERAGE = {"fedasync"}  # a fresh client's model only gets the share alpha

over_all_policies = pytest.mark.parametrize("name", names())


@st.composite
def batches(draw: st.DrawFn, rows_min: int = 0) -> UpdateBatch:
    rows = draw(st.integers(rows_min, 6))
    rng = stream(draw(st.integers(0, 2**32)), Stream.BATCHES)
    staleness = draw(st.lists(st.integers(0, 5000), min_size=rows, max_size=rows))
    models = [torch.from_numpy(rng.standard_normal(DIMENSION).astype(np.float32)) for _ in range(3)]
    return UpdateBatch(
        version=0,
        matrix_Kd=torch.from_numpy(rng.standard_normal((rows, DIMENSION)).astype(np.float32)),
        staleness_K=torch.tensor(staleness, dtype=torch.int64),
        num_examples_K=torch.from_numpy(rng.integers(1, 500, rows)),
        loss_K=torch.from_numpy(rng.random(rows).astype(np.float32)),
        client_ids_K=torch.from_numpy(rng.permutation(CLIENTS)[:rows]),
        model_d=models[0],
        base_models=tuple(models[i] for i in rng.integers(0, 3, rows)),
        rate=0.1,
        local_rates_K=torch.full((rows,), 0.05),
    )


def make(name: str):
    return create(name, dimension=DIMENSION, clients=CLIENTS)


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(batch=batches())
def test_a_step_has_the_shape_that_the_interface_promises(name: str, batch: UpdateBatch) -> None:
    step = make(name).step(batch)
    assert step.direction_d.shape == (DIMENSION,)
    assert step.direction_d.dtype == torch.float32
    assert not step.direction_d.requires_grad
    assert bool(torch.isfinite(step.direction_d).all())
    assert step.weights_K.shape == (len(batch),)
    assert step.weights_K.dtype == torch.float64
    assert step.weights_K.device.type == "cpu"
    assert bool((step.weights_K >= 0).all())
    assert step.weights_K.sum() <= 1 + 1e-12
    assert isinstance(step.rate_factor, float)


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(batch=batches())
def test_arguments_are_not_written_to(name: str, batch: UpdateBatch) -> None:
    before = copy.deepcopy(batch)
    make(name).step(batch)
    for field in fields(batch):
        after, original = getattr(batch, field.name), getattr(before, field.name)
        if field.name == "base_models":
            assert all(torch.equal(a, b) for a, b in zip(after, original, strict=True))
        elif isinstance(after, torch.Tensor):
            assert torch.equal(after, original), field.name
        else:
            assert after == original, field.name


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(batch=batches())
def test_the_same_input_gives_the_same_bits(name: str, batch: UpdateBatch) -> None:
    first, second = make(name).step(batch), make(name).step(copy.deepcopy(batch))
    assert first.direction_d.numpy().tobytes() == second.direction_d.numpy().tobytes()
    assert first.weights_K.numpy().tobytes() == second.weights_K.numpy().tobytes()
    assert first.rate_factor == second.rate_factor


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(rounds=st.lists(batches(), min_size=2, max_size=4))
def test_a_policy_continues_from_its_state_to_the_bit(name: str, rounds: list[UpdateBatch]) -> None:
    whole, first_part, second_part = make(name), make(name), make(name)
    for batch in rounds[:-1]:
        whole.step(batch)
        first_part.step(batch)
    second_part.load_state_dict(first_part.state_dict())
    assert torch.equal(second_part.step(rounds[-1]).direction_d, whole.step(rounds[-1]).direction_d)


@over_all_policies
def test_an_empty_batch_moves_nothing(name: str) -> None:
    none = torch.empty(0, dtype=torch.int64)
    step = make(name).step(
        UpdateBatch(
            version=0,
            matrix_Kd=torch.empty(0, DIMENSION),
            staleness_K=none,
            num_examples_K=none,
            loss_K=torch.empty(0),
            client_ids_K=none,
        )
    )
    assert step.direction_d.tolist() == [0.0] * DIMENSION
    assert step.weights_K.tolist() == []


@pytest.mark.parametrize("name", sorted(set(names()) - ORDER_MATTERS))
@settings(max_examples=15, deadline=None)
@given(batch=batches(rows_min=2), data=st.data())
def test_the_order_of_arrival_changes_rounding_only(
    name: str, batch: UpdateBatch, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    permuted = replace(
        batch,
        matrix_Kd=batch.matrix_Kd[order],
        staleness_K=batch.staleness_K[order],
        num_examples_K=batch.num_examples_K[order],
        loss_K=batch.loss_K[order],
        client_ids_K=batch.client_ids_K[order],
        base_models=tuple(batch.base_models[i] for i in order),
    )
    expected, actual = make(name).step(batch), make(name).step(permuted)
    torch.testing.assert_close(actual.direction_d, expected.direction_d, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(actual.weights_K, expected.weights_K[order])


@pytest.mark.parametrize("name", sorted(ORDER_MATTERS))
def test_for_the_others_the_order_of_arrival_matters(name: str, make_batch) -> None:
    forwards = make_batch([[1.0] * DIMENSION, [2.0] * DIMENSION], staleness=[0, 0])
    backwards = make_batch([[2.0] * DIMENSION, [1.0] * DIMENSION], staleness=[0, 0])
    assert not torch.equal(make(name).step(forwards).direction_d, make(name).step(backwards).direction_d)


@pytest.mark.parametrize("name", sorted(set(names()) - STEPS_LESS_THAN_THE_AVERAGE))
@settings(max_examples=15, deadline=None)
@given(batch=batches(rows_min=1))
def test_equal_fresh_updates_are_one_step_against_their_gradient(name: str, batch: UpdateBatch) -> None:
    """Property (a): all s = 0 and all g equal give w - eta g."""
    gradient_d = batch.matrix_Kd[0]
    equal = replace(
        batch,
        matrix_Kd=gradient_d.repeat(len(batch), 1),
        staleness_K=torch.zeros(len(batch), dtype=torch.int64),
        num_examples_K=torch.full((len(batch),), 7),
    )
    step = make(name).step(equal)
    torch.testing.assert_close(step.direction_d * step.rate_factor, gradient_d, atol=1e-6, rtol=1e-6)


def test_fedavg_by_samples_over_all_clients_is_one_gradient_step_on_the_pooled_data(make_batch) -> None:
    """Property (b): K = N, s = 0, one step on full local batches."""
    rng = stream(0, Stream.PARTITION)
    inputs = torch.from_numpy(rng.standard_normal((12, 3)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, 12))
    weight = torch.zeros(2, 3, requires_grad=True)

    def gradient(rows: slice) -> list[float]:
        loss = nn.functional.cross_entropy(inputs[rows] @ weight.T, labels[rows])
        return torch.autograd.grad(loss, weight)[0].flatten().tolist()

    shares = [slice(0, 2), slice(2, 7), slice(7, 12)]
    batch = make_batch([gradient(rows) for rows in shares], staleness=[0, 0, 0], examples=[2, 5, 5])
    step = create("fedavg", dimension=6, clients=3, weighting="samples").step(batch)
    torch.testing.assert_close(step.direction_d, torch.tensor(gradient(slice(0, 12))), atol=1e-6, rtol=1e-6)


@over_all_policies
def test_a_policy_without_state_refuses_one(name: str) -> None:
    policy = make(name)
    if policy.state_dict() == {}:
        with pytest.raises(ValueError, match="keeps no state"):
            policy.load_state_dict({"momentum_d": torch.zeros(DIMENSION)})
