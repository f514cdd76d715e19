import pytest
import torch
from torch import nn

from unstale.errors import UserError
from unstale.training.initialise import initialised
from unstale.training.models import MODELS, build


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "parameters"),
    [
        ("logreg", (1, 28, 28), 10, 784 * 10 + 10),
        ("logreg", (784,), 10, 7850),
        ("logreg", (3, 2, 2), 4, 12 * 4 + 4),
        ("lenet_28", (1, 28, 28), 10, 44426),
        ("lenet_cifar", (3, 32, 32), 10, 62006),
        ("lenet_cifar", (3, 32, 32), 100, 69656),
        ("digits_cnn", (1, 8, 8), 10, (9 + 1) * 32 + (512 + 1) * 10),
    ],
)
def test_models_have_the_parameter_counts_of_algorithms_md_5(name, input_shape, classes, parameters):
    model = build(name, input_shape, classes, seed=0)
    assert count(model) == parameters
    assert model(torch.zeros(2, *input_shape)).shape == (2, classes)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_parameters_and_the_global_generator_stays_as_it_was(name):
    input_shape = MODELS[name][1] or (5,)
    before = torch.random.get_rng_state()
    first = build(name, input_shape, 10, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    second, other = build(name, input_shape, 10, seed=3), build(name, input_shape, 10, seed=4)
    for mine, same, different in zip(
        first.parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(mine, same)
        assert not torch.equal(mine, different)


def test_the_seed_gives_the_numbers_of_torch_manual_seed():
    drawn = initialised(lambda: nn.Linear(3, 2), seed=11)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)  # noqa: TID251 (it is what this is compared with)
        expected = nn.Linear(3, 2)
    assert torch.equal(drawn.weight, expected.weight)


def test_an_unknown_model_is_answered_with_the_nearest_name():
    with pytest.raises(UserError, match=r"^unknown model 'lenet28'; did you mean 'lenet_28'\?$"):
        build("lenet28", (1, 28, 28), 10, seed=0)


def test_a_model_that_does_not_fit_the_data_is_refused_in_one_sentence():
    with pytest.raises(UserError) as caught:
        build("lenet_cifar", (1, 28, 28), 10, seed=0)
    assert str(caught.value) == (
        "model 'lenet_cifar' takes inputs of shape 3x32x32, but the data set's have shape 1x28x28; "
        "choose one that fits: lenet_28, logreg"
    )
