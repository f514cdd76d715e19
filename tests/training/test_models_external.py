"""torchvision's models and factories of the user, and checks of their models."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.training.models import build, find


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """Builds the result of a factory, as model `mine:factory`."""

    def built(factory: object, input_shape: tuple[int, ...] = (1, 2, 2), classes: int = 3) -> nn.Module:
        mine = ModuleType("mine")
        mine.factory = factory
        monkeypatch.setitem(sys.modules, "mine", mine)
        return build("mine:factory", input_shape, classes, seed=5)

    return built


def flat_linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "torchvision.mobilenet_v3_small"])
def test_torchvisions_models_are_built_by_name_for_the_number_of_classes(name: str) -> None:
    before = torch.random.get_rng_state()
    module = build(name, (3, 32, 32), 7, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    again = build(name, (3, 32, 32), 7, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_a_plain_name_is_ours_and_the_prefix_names_torchvisions() -> None:
    # theirs has a 7x7 stem: 3 * 64 * (49 - 9) more parameters than ours.
    theirs = FlatModel(build("torchvision.resnet18", (3, 32, 32), 10, seed=1))
    assert theirs.dimension == 11173962 + 7680


@pytest.mark.parametrize("name", ["mobilenet_v2", "googlenet"])
def test_the_check_leaves_the_buffers_of_a_new_model(name: str) -> None:
    module = build(name, (3, 32, 32), 10, seed=1)
    for key, buffer in module.named_buffers():
        assert buffer.eq(1 if key.endswith("var") else 0).all(), key


def test_torchvisions_models_take_three_channels() -> None:
    assert refused(lambda: build("mobilenet_v2", (1, 28, 28), 10, seed=0)) == (
        "model 'mobilenet_v2' does not take the data set's inputs of shape 1x28x28 "
        "(it takes images of three channels); choose one that fits: "
        "cnn3, emnist_cnn, lenet_28, lenet_28_padded, lenet_gi, logreg"
    )


def test_images_too_small_for_a_model_are_refused_with_its_own_words() -> None:
    message = refused(lambda: build("alexnet", (3, 32, 32), 10, seed=0))
    assert message.startswith("model 'alexnet' does not take the data set's inputs of shape 3x32x32 (Given input")
    assert message.endswith("choose one that fits: lenet_cifar, logreg, resnet18, resnet8")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "fcn_resnet50", "r3d_18"])
def test_torchvisions_other_models_are_refused_before_they_are_built(name: str) -> None:
    assert refused(lambda: build(f"torchvision.{name}", (3, 32, 32), 10, seed=0)) == (
        f"model 'torchvision.{name}' does not classify images; "
        "expected a model that does, such as torchvision.mobilenet_v2"
    )


def test_an_unknown_name_of_torchvision_is_answered_with_the_nearest() -> None:
    message = refused(lambda: find("torchvision.mobilenet_v22"))
    assert message == "unknown torchvision model 'mobilenet_v22'; did you mean 'mobilenet_v2'?"


def test_batch_norm_takes_a_lone_example_as_in_evaluation(make) -> None:
    # running mean 0 and variance 1, so the norm divides by sqrt(1 + 1e-5); weight and bias are 1 and 0.
    module = make(lambda input_shape, classes: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, classes)))
    module.train()
    inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    torch.testing.assert_close(module[1](inputs), inputs / (1 + 1e-5) ** 0.5)
    assert module[1].running_mean.tolist() == [0, 0, 0, 0]
    cross_entropy(module(inputs), torch.tensor([0])).backward()
    two = torch.cat((inputs, inputs + 2))  # mean + 1, so the deviations are -1 and 1
    torch.testing.assert_close(module[1](two), torch.tensor([[-1.0] * 4, [1.0] * 4]))
    torch.testing.assert_close(module[1].running_mean, 0.1 * (inputs[0] + 1))


@pytest.mark.parametrize(
    "factory",
    [
        flat_linear,
        lambda shape, count: flat_linear(shape, count),
        lambda classes, *, input_shape: flat_linear(input_shape, classes),
        lambda classes, input_shape, width=3: flat_linear(input_shape, classes),
    ],
)
def test_a_factory_is_called_by_keyword_where_it_has_the_names_and_else_in_order(make, factory) -> None:
    module = make(factory)
    assert module(torch.zeros(5, 1, 2, 2)).shape == (5, 3)
    assert torch.equal(module[1].weight, make(flat_linear)[1].weight)


def test_a_factory_is_not_imported_where_it_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ModuleType("mine")  # without a factory, so that an import would have another error
    monkeypatch.setitem(sys.modules, "mine", mine)
    assert refused(lambda: build("mine:factory", (4,), 3, seed=0, allow_factory=False)) == (
        "model 'mine:factory' is code, which is not imported because another side names it; "
        "name it in this side's own configuration too, or choose a model that unstale has"
    )


def test_a_factory_that_is_not_there_is_refused() -> None:
    assert refused(lambda: find("mine:")).startswith("model 'mine:' is no name of an object")
    assert refused(lambda: find("not_there:factory")).startswith("model 'not_there:factory' cannot be imported")


class Twice(nn.Linear):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(inputs), inputs


class Choosy(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        raise ValueError("five numbers\nand no more")


class Reassigns(nn.Linear):
    def __init__(self, held: int, classes: int) -> None:
        super().__init__(held, classes)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean()
        return super().forward(inputs)


EXPECTED = "for two inputs of shape 4, expected float32 logits of shape 2x3"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(4, 2), f"gives float32 values of shape 2x2 {EXPECTED}"),
        (Twice(4, 3), f"gives a value of type tuple {EXPECTED}"),
        (Choosy(4, 3), "does not take the data set's inputs of shape 4 (five numbers); choose one that fits: logreg"),
        (nn.Linear(4, 3).double(), "holds 'weight' in float64, expected float32 throughout"),
        (nn.Flatten(), "has no parameters with requires_grad, expected some to train"),
        (nn.Linear(4, 3).requires_grad_(False), "has no parameters with requires_grad, expected some to train"),
        (Reassigns(4, 3), "puts a new tensor in place of its buffer 'mean'; expected it to be written to"),
        (7, "made a value of type int, expected a torch.nn.Module"),
    ],
)
def test_the_result_of_a_factory_is_checked(make, module: object, message: str) -> None:
    assert refused(lambda: make(lambda input_shape, classes: module, (4,))) == f"model 'mine:factory' {message}"


def test_a_norm_that_would_depend_on_all_batches_seen_before_is_refused(make) -> None:
    def factory(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, classes))

    assert refused(lambda: make(factory, (4,))) == (
        "model 'mine:factory': norm '0' has momentum None, whose weight depends on all batches seen before; "
        "expected a number, such as 0.1"
    )


def test_a_factory_that_takes_something_else_is_refused(make) -> None:
    assert refused(lambda: make(lambda only: nn.Linear(4, 3))) == (
        "model 'mine:factory' takes (only), expected a function of (input_shape, classes), or of nothing"
    )


def test_frozen_parameters_of_a_factory_are_of_any_type_and_not_exchanged(make: Callable[..., nn.Module]) -> None:
    def frozen(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        module = flat_linear(input_shape, classes)
        module.register_parameter("scale", nn.Parameter(torch.ones(1, dtype=torch.int8), requires_grad=False))
        module[1].weight.requires_grad_(False)
        return module

    assert [name for name, _ in FlatModel(make(frozen)).parameters] == ["1.bias"]
