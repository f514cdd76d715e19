"""Laws of every registered policy, and properties of single policies."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unstale.policies import Step, UpdateBatch, create, names
from unstale.seeds import Stream, stream

DIMENSION = 5
CLIENTS = 9

# Policies exempt from a law, and the reason.
REQUIRED_SETTINGS = {"fedavg-is": {"probabilities": 0.5}}
"""Settings that have no default."""
ORDER_MATTERS = {
    "fedasync"  # each client's model is mixed into the result of those before it
}
WEIGHS_UNLIKE_AN_AVERAGE = {
    "fedavg-is"  # a client that is available half of the time has twice the weight
}
STEPS_UNLIKE_THE_AVERAGE = {
    "fedasync",  # the model of a fresh client has the share alpha
    "fedavg-is",  # the sum is divided by the number of all clients
    "mifa",  # by default no step before every client has sent an update
}
MOVES_ON_AN_EMPTY_BATCH = {"fedar", "fedvarp", "mifa"}  # from their memory

over_all_policies = pytest.mark.parametrize("name", names())


def over_all_but(exceptions: set[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", sorted(set(names()) - exceptions))


@st.composite
def batches(draw: st.DrawFn, rows_min: int = 0) -> UpdateBatch:
    rows = draw(st.integers(rows_min, CLIENTS))
    rng = stream(draw(st.integers(0, 2**32)), Stream.BATCHES)
    staleness = draw(st.lists(st.integers(0, 5000), min_size=rows, max_size=rows))

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    models = [normal(DIMENSION) for _ in range(3)]
    row_numbers_KD = normal(rows, 2 * DIMENSION + 1)  # the vectors lie within longer rows, as in a server
    return UpdateBatch(
        version=5000 + draw(st.integers(0, 100)),
        matrix_Kd=row_numbers_KD[:, :DIMENSION],
        staleness_K=torch.tensor(staleness, dtype=torch.int64),
        num_examples_K=torch.from_numpy(rng.integers(1, 500, rows)),
        loss_K=torch.from_numpy(rng.random(rows).astype(np.float32)),
        client_ids_K=torch.from_numpy(rng.permutation(CLIENTS)[:rows]),
        batch_sizes_K=torch.from_numpy(rng.integers(1, 64, rows)),
        extra_Kd=row_numbers_KD[:, -DIMENSION:],
        model_d=models[0],
        base_models=tuple(models[i] for i in rng.integers(0, 3, rows)),
        rate=0.1,
        local_rates_K=torch.full((rows,), 0.05),
    )


@st.composite
def runs(draw: st.DrawFn) -> list[UpdateBatch]:
    """Several consecutive rounds."""
    rounds = draw(st.lists(batches(), min_size=2, max_size=5))
    return [replace(batch, version=5000 + number) for number, batch in enumerate(rounds)]


def make(name: str):
    return create(name, dimension=DIMENSION, clients=CLIENTS, **REQUIRED_SETTINGS.get(name, {}))


def empty_batch(version: int = 0) -> UpdateBatch:
    none, no_rows = torch.empty(0, dtype=torch.int64), torch.empty(0, DIMENSION)
    return UpdateBatch(
        version=version,
        matrix_Kd=no_rows,
        staleness_K=none,
        num_examples_K=none,
        loss_K=torch.empty(0),
        client_ids_K=none,
    )


def bits(step: Step) -> tuple[object, ...]:
    return step.direction_d.numpy().tobytes(), step.weights_K.numpy().tobytes(), step.rate_factor, step.counts


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(batch=batches())
def test_a_step_has_the_shape_of_the_interface(name: str, batch: UpdateBatch) -> None:
    step = make(name).step(batch)
    assert step.direction_d.shape == (DIMENSION,)
    assert step.direction_d.dtype == torch.float32
    assert not step.direction_d.requires_grad
    assert bool(torch.isfinite(step.direction_d).all())
    assert step.weights_K.shape == (len(batch),)
    assert step.weights_K.dtype == torch.float64
    assert step.weights_K.device.type == "cpu"
    assert bool((step.weights_K >= 0).all())
    assert step.weights_K.sum() <= 1 + 1e-12 or name in WEIGHS_UNLIKE_AN_AVERAGE
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
@given(rounds=runs())
def test_the_same_input_gives_the_same_bits(name: str, rounds: list[UpdateBatch]) -> None:
    first, second = make(name), make(name)
    for batch in rounds:
        assert bits(first.step(batch)) == bits(second.step(copy.deepcopy(batch)))


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(rounds=runs())
def test_a_policy_resumes_bit_for_bit_from_its_state(name: str, rounds: list[UpdateBatch]) -> None:
    whole, again = make(name), make(name)
    for batch in rounds[:-1]:
        whole.step(batch)
    saved = whole.state_dict()
    expected = bits(whole.step(rounds[-1]))
    again.load_state_dict(saved)
    assert bits(again.step(rounds[-1])) == expected, "what was saved is a copy"


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(rounds=runs())
def test_rounds_of_any_size_give_finite_steps(name: str, rounds: list[UpdateBatch]) -> None:
    policy = make(name)
    for batch in rounds:
        available = replace(batch, staleness_K=torch.zeros_like(batch.staleness_K), base_models=None)
        step = policy.step(available)
        assert bool(torch.isfinite(step.direction_d).all())
        assert step.weights_K.shape == (len(batch),)
        assert step.counts or not step.direction_d.any(), "a round that does not count does not move the model"


@over_all_policies
def test_an_empty_batch_leaves_the_model_unchanged(name: str) -> None:
    step = make(name).step(empty_batch())
    assert step.direction_d.tolist() == [0.0] * DIMENSION
    assert step.weights_K.tolist() == []


@over_all_but(MOVES_ON_AN_EMPTY_BATCH)
@settings(max_examples=15, deadline=None)
@given(rounds=runs())
def test_an_empty_batch_leaves_the_model_unchanged_after_other_rounds(name: str, rounds: list[UpdateBatch]) -> None:
    policy = make(name)
    for batch in rounds:
        policy.step(batch)
    assert policy.step(empty_batch(rounds[-1].version + 1)).direction_d.tolist() == [0.0] * DIMENSION


@pytest.mark.parametrize("name", sorted(MOVES_ON_AN_EMPTY_BATCH & set(names())))
@settings(max_examples=15, deadline=None)
@given(batch=batches(rows_min=CLIENTS))
def test_policies_with_memory_still_step_on_an_empty_batch(name: str, batch: UpdateBatch) -> None:
    policy = make(name)
    policy.step(batch)
    assert policy.step(empty_batch(batch.version + 1)).direction_d.any()


def _times(batch: UpdateBatch, factor: float) -> UpdateBatch:
    """The same round with all vectors scaled."""
    models = {id(model_d): model_d * factor for model_d in (batch.model_d, *batch.base_models)}
    return replace(
        batch,
        matrix_Kd=batch.matrix_Kd * factor,
        extra_Kd=batch.extra_Kd * factor,
        model_d=models[id(batch.model_d)],
        base_models=tuple(models[id(model_d)] for model_d in batch.base_models),
    )


@over_all_policies
@settings(max_examples=15, deadline=None)
@given(rounds=runs(), power=st.integers(-6, 6))
def test_vectors_twice_as_long_give_a_step_twice_as_long(name: str, rounds: list[UpdateBatch], power: int) -> None:
    """To the bit, because a power of two rounds nothing: no weight is so small that its products lose digits, and the
    thresholds of the numerical conventions are far below. Both lie in memory of PyTorch's own: where a vector begins
    decides the bits of MKL's products on some processors."""
    plain, scaled, factor = make(name), make(name), 2.0**power
    for batch in rounds:
        batch = replace(batch, staleness_K=batch.staleness_K % 40)
        expected, actual = plain.step(_times(batch, 1.0)), scaled.step(_times(batch, factor))
        assert torch.equal(actual.direction_d, expected.direction_d * factor)
        assert torch.equal(actual.weights_K, expected.weights_K)
        assert actual.rate_factor == expected.rate_factor


@over_all_but(ORDER_MATTERS)
@settings(max_examples=15, deadline=None)
@given(batch=batches(rows_min=2), data=st.data())
def test_the_order_of_arrival_changes_rounding_only(name: str, batch: UpdateBatch, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    permuted = replace(
        batch,
        matrix_Kd=batch.matrix_Kd[order],
        staleness_K=batch.staleness_K[order],
        num_examples_K=batch.num_examples_K[order],
        loss_K=batch.loss_K[order],
        client_ids_K=batch.client_ids_K[order],
        batch_sizes_K=batch.batch_sizes_K[order],
        extra_Kd=batch.extra_Kd[order],
        base_models=tuple(batch.base_models[i] for i in order),
    )
    expected, actual = make(name).step(batch), make(name).step(permuted)
    torch.testing.assert_close(actual.direction_d, expected.direction_d, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(actual.weights_K, expected.weights_K[order], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(ORDER_MATTERS))
def test_the_order_of_arrival_matters_for_the_exceptions(name: str, make_batch) -> None:
    forwards = make_batch([[1.0] * DIMENSION, [2.0] * DIMENSION], staleness=[0, 0])
    backwards = make_batch([[2.0] * DIMENSION, [1.0] * DIMENSION], staleness=[0, 0])
    assert not torch.equal(make(name).step(forwards).direction_d, make(name).step(backwards).direction_d)


@over_all_but(STEPS_UNLIKE_THE_AVERAGE)
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
        base_models=None,
        local_rates_K=None,
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
