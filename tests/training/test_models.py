from functools import partial

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from unstale.errors import UserError
from unstale.training.initialise import seeded
from unstale.training.models import MODELS, build
from unstale.training.models.networks import FirstConv2d, Halving


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "parameters"),
    [
        ("logreg", (1, 28, 28), 10, 784 * 10 + 10),
        ("logreg", (784,), 10, 7850),
        ("logreg", (3, 2, 2), 4, 12 * 4 + 4),
        ("lenet_28", (1, 28, 28), 10, 44426),
        ("lenet_28_padded", (1, 28, 28), 10, 61706),
        ("lenet_cifar", (3, 32, 32), 10, 62006),
        ("lenet_cifar", (3, 32, 32), 100, 69656),
        ("lenet_gi", (1, 28, 28), 10, 21840),
        ("cnn3", (1, 28, 28), 10, 20490),
        ("emnist_cnn", (1, 28, 28), 10, 582026),
        ("emnist_cnn", (1, 28, 28), 62, 608702),
        ("celeba_cnn", (3, 84, 84), 2, 1600792),
        ("resnet8", (3, 32, 32), 10, 78042),
        ("resnet8", (3, 32, 32), 100, 78042 + (64 + 1) * 90),
        ("resnet18", (3, 32, 32), 10, 11173962),
        ("resnet18", (3, 32, 32), 100, 11173962 + (512 + 1) * 90),
        ("digits_cnn", (1, 8, 8), 10, (9 + 1) * 32 + (512 + 1) * 10),
    ],
)
def test_models_have_the_parameter_counts_of_algorithms_md_5(name, input_shape, classes, parameters):
    model = build(name, input_shape, classes, seed=0)
    assert count(model) == parameters
    assert model(torch.zeros(2, *input_shape)).shape == (2, classes)


@pytest.mark.parametrize(("name", "parameters"), [("resnet8", 78042), ("resnet18", 11173962)])
def test_batch_norm_has_as_many_parameters_as_group_norm(name, parameters):
    assert count(build(name, (3, 32, 32), 10, seed=0, norm="batch")) == parameters


def lenet(weights, x, padding=0):
    """docs/methods/models.md row by row; weights in the order of the parameters."""
    x = max_pool2d(relu(conv2d(x, weights[0], weights[1], padding=padding)), 2)
    x = max_pool2d(relu(conv2d(x, weights[2], weights[3])), 2).flatten(1)
    return linear(relu(linear(relu(linear(x, *weights[4:6])), *weights[6:8])), *weights[8:])


def gi(weights, x):
    x = relu(max_pool2d(conv2d(x, weights[0], weights[1]), 2))
    x = relu(max_pool2d(conv2d(x, weights[2], weights[3]), 2)).flatten(1)
    return linear(relu(linear(x, *weights[4:6])), *weights[6:])


def two_convolutions(weights, x, padding=0):
    x = max_pool2d(relu(conv2d(x, weights[0], weights[1], padding=padding)), 2)
    x = max_pool2d(relu(conv2d(x, weights[2], weights[3], padding=padding)), 2).flatten(1)
    if len(weights) == 8:
        x = relu(linear(x, *weights[4:6]))
    return linear(x, *weights[-2:])


def celeba(weights, x):
    x = max_pool2d(relu(conv2d(x, weights[0], weights[1])), 2).flatten(1)
    return linear(relu(linear(x, *weights[2:4])), *weights[4:])


@pytest.mark.parametrize(
    ("name", "input_shape", "oracle"),
    [
        ("lenet_cifar", (3, 32, 32), lenet),
        ("lenet_28", (1, 28, 28), lenet),
        ("lenet_28_padded", (1, 28, 28), partial(lenet, padding=2)),
        ("lenet_gi", (1, 28, 28), gi),
        ("cnn3", (1, 28, 28), partial(two_convolutions, padding=1)),
        ("emnist_cnn", (1, 28, 28), two_convolutions),
        ("celeba_cnn", (3, 84, 84), celeba),
    ],
)
def test_the_layers_are_those_of_the_table_in_their_order(name, input_shape, oracle):
    model = build(name, input_shape, 4, seed=0).eval()
    inputs = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(inputs), oracle(list(model.parameters()), inputs))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_is_the_published_one_with_another_stem(norm):
    ours = build("resnet18", (3, 32, 32), 10, seed=0, norm=norm).eval()
    made = {"norm_layer": partial(nn.GroupNorm, 2)} if norm == "group" else {}
    theirs = torchvision.models.resnet18(num_classes=10, **made).eval()
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(ours.parameters()), theirs.parameters())
    inputs = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(inputs), theirs(inputs))


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_parameters_and_the_global_generator_stays_as_it_was(name):
    input_shape = MODELS[name][1] or (5,)
    before = torch.random.get_rng_state()
    first = build(name, input_shape, 10, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    second, other = build(name, input_shape, 10, seed=3), build(name, input_shape, 10, seed=4)
    for (key, mine), same, different in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(mine, same)
        if not mine.eq(mine.flatten()[0]).all():  # a norm layer starts with ones and zeros
            assert not torch.equal(mine, different), key


def test_the_seed_gives_the_numbers_of_torch_manual_seed():
    with seeded(11):
        drawn = nn.Linear(3, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)  # noqa: TID251 (it is what this is compared with)
        expected = nn.Linear(3, 2)
    assert torch.equal(drawn.weight, expected.weight)


def test_an_unknown_model_is_answered_with_the_nearest_name():
    with pytest.raises(UserError, match=r"^unknown model 'lenet28'; did you mean 'lenet_28'\?$"):
        build("lenet28", (1, 28, 28), 10, seed=0)
    with pytest.raises(UserError, match=r"^unknown model 'mobilenetv2'; did you mean 'mobilenet_v2'\?$"):
        build("mobilenetv2", (3, 32, 32), 10, seed=0)
    with pytest.raises(UserError, match=r"^unknown model 'x'; expected one of celeba_cnn, .*torchvision\.NAME$"):
        build("x", (3, 32, 32), 10, seed=0)


def test_a_norm_is_chosen_for_our_resnets_alone():
    with pytest.raises(UserError, match=r"^unknown model.norm 'bach'; did you mean 'batch'\?$"):
        build("resnet8", (3, 32, 32), 10, seed=0, norm="bach")
    with pytest.raises(
        UserError, match=r"^model.norm is 'batch', but model 'logreg' leaves no choice; expected resnet8 or resnet18$"
    ):
        build("logreg", (3, 32, 32), 10, seed=0, norm="batch")


def test_a_model_that_does_not_fit_the_data_is_refused_in_one_sentence():
    with pytest.raises(UserError) as caught:
        build("lenet_cifar", (1, 28, 28), 10, seed=0)
    assert str(caught.value) == (
        "model 'lenet_cifar' takes inputs of shape 3x32x32, but the data set's have shape 1x28x28; "
        "choose one that fits: cnn3, emnist_cnn, lenet_28, lenet_28_padded, lenet_gi, logreg"
    )


@pytest.mark.parametrize("side", [8, 9])
def test_halving_has_the_bits_of_max_pooling_behind_a_relu_with_and_without_gradients(side: int) -> None:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 2, side, side, generator=draws)
    inputs = inputs.round(decimals=1) + 0.0  # with ties, some at zero, which has no sign
    inputs[0, 0, 0, 0] = float("nan")
    inputs[1, 0] = -inputs[1, 0].abs() - 0.1  # nothing is left of these
    weights = torch.randn(3, 2, side // 2, side // 2, generator=draws)
    found = []

    def bits(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.nan_to_num(nan=7.0).view(torch.int32)  # NaN has no sign

    for layers in ([torch.nn.ReLU(), torch.nn.MaxPool2d(2)], [Halving(), torch.nn.ReLU()]):
        network, own = torch.nn.Sequential(*layers), inputs.clone().requires_grad_()
        outputs = network(own)
        with torch.no_grad():
            assert torch.equal(bits(network(inputs)), bits(outputs))
        (outputs * weights)[1:].sum().backward()
        assert own.grad is not None
        found.append([bits(one) for one in (outputs.detach(), own.grad)])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_the_first_convolution_equals_pytorchs_with_channels_last():
    ours, theirs = FirstConv2d(3, 4, kernel_size=5), nn.Conv2d(3, 4, kernel_size=5)
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    found = []
    for convolution in (ours, theirs):
        own = inputs.clone().requires_grad_()
        outputs = convolution(own)
        slopes = torch.autograd.grad(outputs.square().mean(), convolution.weight, create_graph=True)[0]
        (second,) = torch.autograd.grad(slopes.square().sum(), own)
        found.append((outputs, slopes, second))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0][0].is_contiguous(memory_format=torch.channels_last)
    assert not found[1][0].is_contiguous(memory_format=torch.channels_last)


def test_the_first_convolution_takes_one_image_several_and_sets_of_them():
    convolution = FirstConv2d(3, 4, kernel_size=5)
    inputs = torch.randn(2, 3, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    together = torch.func.vmap(convolution)(inputs)
    torch.testing.assert_close(together, torch.stack([convolution(one) for one in inputs]))
    torch.testing.assert_close(convolution(inputs[0, 0]), convolution(inputs[0, :1])[0])
