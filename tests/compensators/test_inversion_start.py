"""Initial examples from N(0, 1), and labels estimated from the update."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import one_hot

from support.compensation import CLASSES, SHAPE, certain, context, images, network, numbers, received, settings
from unstale.compensators import LocalSteps, Network
from unstale.compensators.inversion import start
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.network import as_vector, local_update, soft
from unstale.seeds import Stream, stream

CPU = torch.device("cpu")


def rng(*key: int):
    return stream(0, Stream.INVERSION, *key)


def test_examples_and_labels_are_drawn_from_the_normal_distribution():
    net = network()
    inputs_rX, labels_rC = start.drawn(net, 3000, rng(1, 2), CPU)
    assert (tuple(inputs_rX.shape), tuple(labels_rC.shape)) == ((3000, *SHAPE), (3000, CLASSES))
    assert float(labels_rC.mean()) == pytest.approx(0, abs=0.05)
    assert float(labels_rC.std()) == pytest.approx(1, abs=0.05)
    assert float(inputs_rX.abs().max()) == 2.0
    assert float((inputs_rX.abs() == 2.0).float().mean()) == pytest.approx(0.0455, abs=0.005)  # beyond 2 sigma


def test_draws_depend_on_seed_client_and_task_only():
    def begun(client_id: int, task_id: int, seed: int = 0, *, before: int = 0):
        subject = Inversions(settings(labels_start="normal"), context(seed=seed))
        for other in range(before):
            subject.begin(received(5, task_id=other + 50))
        now = subject.begin(received(client_id, task_id=task_id)).now
        return torch.cat([now.inputs_rX.flatten(), now.labels_rC.flatten()])

    first = begun(1, 2)
    assert torch.equal(first, begun(1, 2, before=2))
    for other in (begun(2, 2), begun(1, 3), begun(1, 2, seed=1)):
        assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("shares", "whole", "counts"),
    [
        ([0.5, 0.5, 0.0], 4, [2, 2, 0]),
        ([0.41, 0.33, 0.26], 10, [4, 3, 3]),  # 4.1, 3.3, 2.6: the largest remainder is the third's
        ([1 / 3, 1 / 3, 1 / 3], 4, [2, 1, 1]),  # of equal remainders the first
        ([0.0, 0.0, 1.0], 1, [0, 0, 1]),
        ([0.25, 0.25, 0.5], 1, [0, 0, 1]),
    ],
)
def test_shares_become_whole_numbers_by_largest_remainder(shares, whole, counts):
    assert start.apportioned(np.array(shares), whole).tolist() == counts


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 500))
def test_whole_numbers_add_up_and_are_less_than_one_off(weights, whole):
    total = sum(weights)
    shares = np.array(weights) / total if total > 1e-6 else np.full(len(weights), 1 / len(weights))
    counts = start.apportioned(shares, whole)
    assert counts.sum() == whole
    assert (np.abs(counts - shares * whole) < 1 + 1e-9).all()


def test_label_logits_stand_for_the_shares():
    noise_rC = numbers(8, CLASSES)
    labels_rC = start.with_labels(noise_rC, torch.tensor([0.25, 0.0, 0.75]))
    assert torch.bincount(labels_rC.argmax(1), minlength=CLASSES).tolist() == [2, 0, 6]
    rest = labels_rC - start.MARGIN * one_hot(labels_rC.argmax(1), CLASSES)
    torch.testing.assert_close(rest, start.SPREAD * noise_rC)


def one_step(net: Network, base_d: torch.Tensor, inputs_nX: torch.Tensor, labels_n: torch.Tensor):
    """The gradient of the mean cross-entropy at a base model."""
    with net.in_use():
        made = local_update(
            *(net, net.parts(base_d), inputs_nX, certain(labels_n), torch.tensor(1.0)),
            steps=1,
            like=LocalSteps(steps=1),
            loss=soft,
        )
    return as_vector(made)


def test_the_gradient_of_the_last_bias_gives_the_labels_of_the_true_examples():
    # mean(p) - y, and mean(p) is known from the same examples.
    net, base_d, inputs_nX = network(), numbers(123, scale=0.4), images(8)
    labels_n = torch.tensor([2, 2, 2, 0, 2, 2, 0, 2])
    slope_C = net.parts(one_step(net, base_d, inputs_nX, labels_n))[-1]
    found_C = start.labels_of(net, net.parts(base_d), inputs_nX, slope_C)
    torch.testing.assert_close(found_C, torch.tensor([0.25, 0.0, 0.75]), atol=1e-6, rtol=0)


def test_the_labels_of_a_model_that_thinks_nothing_by_hand():
    # All parameters 0: p = 1/3 of everything. slope = 1/3 - y, so y = 1/3 - slope; negative shares are 0.
    net = network()
    parts = net.parts(torch.zeros(123))
    slope_C = torch.tensor([1 / 3 - 0.9, 1 / 3 - 0.3, 1 / 3 + 0.2])
    found_C = start.labels_of(net, parts, images(2), slope_C)
    torch.testing.assert_close(found_C, torch.tensor([0.75, 0.25, 0.0]))


def test_a_slope_that_leaves_nothing_is_taken_for_equal_shares():
    net = network()
    for slope_C in (torch.full((CLASSES,), 9.0), torch.full((CLASSES,), torch.nan)):
        found_C = start.labels_of(net, net.parts(torch.zeros(123)), images(2), slope_C)
        assert found_C.tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    "steps",
    [LocalSteps(steps=1), LocalSteps(steps=5), LocalSteps(steps=5, momentum=0.9), LocalSteps(epochs=3, batch_size=2)],
    ids=str,
)
def test_an_inversion_begins_with_the_labels_of_its_client(steps):
    # A very small rate: the update is its gradient times the steps and the rate.
    net, labels_n = network(), torch.tensor([1, 1, 1, 1, 1, 1, 2, 2])
    base_d, rate = numbers(123, scale=0.05), 1e-4
    gradient_d = one_step(net, base_d, images(8), labels_n)
    kg, eta = steps.of(8, rate)
    vector_d = gradient_d * steps.reach(kg) * eta / rate
    subject = Inversions(settings(images_max=8, images_share=1.0), context(net, steps=steps))
    one = subject.begin(received(vector_d=vector_d, base_d=base_d, local_rate=rate))
    assert torch.bincount(one.now.labels_rC.argmax(1), minlength=CLASSES).tolist() == [0, 6, 2]


@pytest.mark.parametrize(
    ("given", "module"),
    [({"labels_start": "normal"}, None), ({}, nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES, bias=False)))],
    ids=["asked for", "no bias"],
)
def test_labels_are_drawn_if_configured_or_without_a_bias(given, module):
    net = network(module)
    subject = Inversions(settings(**given), context(net))
    update = received(2, task_id=33, base_d=numbers(net.dimension))
    found = subject.begin(update).now
    inputs_rX, labels_rC = start.drawn(net, 4, rng(2, 33), CPU)
    assert torch.equal(found.inputs_rX, inputs_rX)
    assert torch.equal(found.labels_rC, labels_rC)


@pytest.mark.parametrize(
    ("given", "num_examples", "count"),
    [
        ({"images_max": 32}, 450, 32),
        ({"images_max": None}, 450, 225),  # half of them, as in the paper
        ({"images_max": None}, 7, 4),  # ceil
        ({"images_max": None}, 1, 1),
        ({"images_max": None, "images_share": 0.01}, 5, 1),
        ({"images_max": None, "images_share": 2.0}, 5, 10),
        ({"images_max": None}, 10**9, 4096),  # however many a client reports
    ],
    ids=str,
)
def test_how_many_examples_are_reconstructed(given, num_examples, count):
    subject = Inversions(settings(**given), context())
    assert len(subject.begin(received(num_examples=num_examples)).now) == count
