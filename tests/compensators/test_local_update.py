"""The simplified local update LU, compared with an oracle and with clients."""

import pytest
import torch
from torch import nn

from oracles import inversion_oracle as oracle
from support.compensation import CLASSES, SHAPE, certain, images, network, numbers, smooth
from support.factories import with_buffers, with_dropout
from support.parts_of_runs import fedprox, gradient, sgd
from unstale.compensators.network import LABEL_LOSSES, LocalSteps, Network, as_vector, local_update
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.examples import TensorExamples
from unstale.training.local import LocalTask, LocalTraining
from unstale.training.models import build
from unstale.training.objectives import Classification

ORACLES = {"soft": oracle.soft, "bce-raw": oracle.bce_raw}


def lu(net, w_d, x, l, rate, *, loss="soft", **like):  # noqa: E741
    steps = LocalSteps(**like)
    with net.in_use():
        made = local_update(
            *(net, net.parts(w_d), x, l, torch.tensor(rate)),
            steps=steps.steps or 1,
            like=steps,
            loss=LABEL_LOSSES[loss],
        )
    return as_vector(made)


def of_clients(training: LocalTraining, module: nn.Module, inputs_nX, labels_n, *, rate: float):
    """A base model, and the update that a client makes of it."""
    model = FlatModel(module)
    base_d = numbers(model.dimension, scale=0.2)
    task = LocalTask(
        base_d=base_d,
        learning_rate=rate,
        batches=training.batches(labels_n, stream(0, Stream.BATCHES, 0, 0)),
        seed=0,
        buffers_b=model.buffers_b.clone() if model.buffers_b.numel() else None,
    )
    local = training.compute(model, TensorExamples(inputs_nX, labels_n), Classification(), task)
    return base_d, local.vector_d * (rate if local.kind == "gradient" else 1)


@pytest.mark.parametrize("loss", LABEL_LOSSES)
@pytest.mark.parametrize(
    "like",
    [
        {"steps": 1},
        {"steps": 4},
        {"steps": 4, "momentum": 0.5},
        {"steps": 4, "weight_decay": 0.05},
        {"steps": 4, "momentum": 0.9, "weight_decay": 0.05},
    ],
    ids=str,
)
def test_it_is_the_oracles(like, loss):
    net, w_d, x, l = network(), numbers(123, scale=0.5), images(5), numbers(5, CLASSES, seed=1)  # noqa: E741
    local = oracle.Local(rate=0.2, **like)
    expected = oracle.local_update(smooth().double(), w_d.double(), x.double(), l.double(), local, ORACLES[loss])
    found = lu(net, w_d, x, l, 0.2, loss=loss, **like)
    torch.testing.assert_close(found.double(), expected.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("loss", LABEL_LOSSES)
def test_its_gradients_in_examples_and_labels_are_the_oracles(loss):
    net, like = Network(smooth().double(), SHAPE, CLASSES), {"steps": 3, "momentum": 0.5}
    w_d, x, l = numbers(123, scale=0.5).double(), images(5).double(), numbers(5, CLASSES, seed=1).double()  # noqa: E741
    along = numbers(123, seed=2).double()  # one direction of the 123 tells, for it is any
    x.requires_grad_(True)
    l.requires_grad_(True)
    second = oracle.local_update(smooth().double(), w_d, x, l, oracle.Local(rate=0.2, **like), ORACLES[loss])
    expected = torch.autograd.grad(second @ along, [x, l])
    found = torch.autograd.grad(lu(net, w_d, x, l, 0.2, loss=loss, **like) @ along, [x, l])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"steps": 3}, {"epochs": 5}, {"epochs": 5, "momentum": 0.5}, {"steps": 4, "momentum": 0.9, "weight_decay": 0.01}],
    ids=str,
)
@pytest.mark.parametrize("model", ["digits_cnn", "logreg", "support.factories:with_frozen"])
def test_clients_that_train_on_full_batches_make_it(model, settings):
    inputs_nX, labels_n = images(6, 1, 8, 8), torch.tensor([0, 3, 3, 9, 1, 0])
    module = build(model, (1, 8, 8), 10, seed=1)
    base_d, expected = of_clients(sgd(batch_size=6, **settings), module, inputs_nX, labels_n, rate=0.1)
    length = settings.get("steps") or settings["epochs"]
    like = {key: value for key, value in settings.items() if key in ("momentum", "weight_decay")}
    found = lu(Network(module, (1, 8, 8), 10), base_d, inputs_nX, certain(labels_n, 10), 0.1, steps=length, **like)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert float(expected.abs().max()) > 1e-2


def test_clients_of_fedprox_make_it():
    inputs_nX, labels_n = images(6), torch.tensor([0, 1, 2, 2, 1, 1])
    module = smooth()
    training = fedprox(batch_size=6, steps=4, mu=0.7, momentum=0.5, weight_decay=0.01)
    base_d, expected = of_clients(training, module, inputs_nX, labels_n, rate=0.2)
    like = {"mu": 0.7, "momentum": 0.5, "weight_decay": 0.01}
    found = lu(network(module), base_d, inputs_nX, certain(labels_n), 0.2, steps=4, **like)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_clients_that_send_a_gradient_make_one_step_of_it():
    inputs_nX, labels_n = images(6), torch.tensor([0, 1, 2, 2, 1, 1])
    module = smooth()
    base_d, expected = of_clients(gradient(batch_size=6), module, inputs_nX, labels_n, rate=0.2)
    found = lu(network(module), base_d, inputs_nX, certain(labels_n), 0.2)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        ({"epochs": 5, "batch_size": 32}, (5, 0.01 * 15)),  # ceil(450 / 32) mini-batches are one step
        ({"epochs": 5, "batch_size": 600}, (5, 0.01)),  # full batch, as in the released code
        ({"steps": 7, "batch_size": 32}, (7, 0.01)),
        ({"batch_size": 32}, (1, 0.01)),  # the gradient of one mini-batch
    ],
    ids=str,
)
def test_how_many_steps_and_how_long(like, expected):
    assert LocalSteps(**like).of(450, 0.01) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("momentum", "steps", "gradients"),
    # z = 1, then 1.5, then 1.75: they add up to 4.25.
    [(0.0, 3, 3.0), (0.5, 1, 1.0), (0.5, 3, 4.25)],
)
def test_how_many_gradients_an_update_adds_up_to(momentum, steps, gradients):
    assert LocalSteps(steps=steps, momentum=momentum).reach(steps) == pytest.approx(gradients)


def test_dropout_does_not_act_and_the_module_trains_on_afterwards():
    module = with_dropout(SHAPE, CLASSES).train()
    net, w_d, x = network(module), numbers(51, scale=0.5), images(5)
    first = lu(net, w_d, x, numbers(5, CLASSES), 0.2, steps=3)
    assert torch.equal(first, lu(net, w_d, x, numbers(5, CLASSES), 0.2, steps=3))
    assert module.training


def test_the_module_trains_on_when_it_was_used_by_something_that_failed():
    module = smooth().train()
    net = network(module)
    with pytest.raises(RuntimeError), net.in_use():
        net.logits(net.parts(numbers(123)), images(2)[:, :, :2])
    assert module.training


def test_buffers_are_neither_counted_nor_written_to():
    module = with_buffers(SHAPE, CLASSES)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    net = network(module)
    found = lu(net, numbers(net.dimension, scale=0.3), images(5), numbers(5, CLASSES), 0.2, steps=2)
    assert len(found) == net.dimension == sum(one.numel() for one in module.parameters())
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_parts_are_views_of_a_vector_and_make_it_again():
    net = network()
    vector_2d = numbers(2, 123)
    parts = net.parts(vector_2d)
    assert [tuple(part.shape) for part in parts] == [(2, 6, 16), (2, 6), (2, 3, 6), (2, 3)]
    assert parts[0].data_ptr() == vector_2d.data_ptr()
    assert torch.equal(torch.vmap(as_vector)(parts), vector_2d)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (smooth(), 3),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES, bias=False)), None),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES), nn.GroupNorm(1, CLASSES)), 3),  # a wrong guess
    ],
    ids=["with bias", "without", "with a norm behind it"],
)
def test_which_part_is_added_to_the_logits(module, expected):
    assert network(module).bias_of_logits == expected
