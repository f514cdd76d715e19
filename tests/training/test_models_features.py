"""The input of the last linear layer, and MOON's head. docs/methods/training.md#moon."""

import pytest
import torch
from torch import Tensor, nn

from unstale.errors import UserError
from unstale.training.models import build, features

NO_LINEAR = (
    "the model does not end in a linear layer, which MOON and projection_head need; "
    "choose one that does, such as lenet_cifar"
)


@pytest.mark.parametrize(
    ("name", "input_shape", "width"),
    [
        ("lenet_cifar", (3, 32, 32), 84),
        ("resnet8", (3, 32, 32), 64),
        ("emnist_cnn", (1, 28, 28), 512),
        ("logreg", (2, 3), 6),
        ("mobilenet_v3_small", (3, 32, 32), 1024),
    ],
)
def test_the_logits_are_the_last_layer_of_the_features(name: str, input_shape: tuple[int, ...], width: int) -> None:
    module = build(name, input_shape, 10, seed=0).eval()
    inputs = torch.rand(3, *input_shape, generator=torch.Generator().manual_seed(1))
    logits_bC, features_bf = features(module)(inputs)
    assert features_bf.shape == (3, width)
    assert torch.equal(logits_bC, module(inputs))
    *_, weight, bias = module.parameters()
    torch.testing.assert_close(features_bf @ weight.T + bias, logits_bC)


def test_a_loss_over_the_features_reaches_the_parameters_before_the_last_layer_alone() -> None:
    # z = 2 x with x = 3: dz/dw = 3.
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2))
    with torch.no_grad():
        module[0].weight.fill_(2)
    _, features_bf = features(module)(torch.tensor([[3.0]]))
    features_bf.sum().backward()
    assert features_bf.tolist() == [[6]]
    assert module[0].weight.grad.tolist() == [[3]]
    assert module[1].weight.grad is None


def test_the_module_is_left_without_a_hook() -> None:
    module = build("logreg", (4,), 3, seed=0)
    features(module)(torch.zeros(1, 4))
    assert not module[1]._forward_hooks


class LinearInside(nn.Module):
    """A linear layer weighs the channels, a convolution gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.weigh = nn.Conv2d(2, 3, 1), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        weights = self.weigh(inputs.mean(dim=(2, 3)))
        return self.convolution(inputs * weights[:, :, None, None]).mean(dim=(2, 3))


def test_a_model_that_ends_in_no_linear_layer_has_no_features() -> None:
    with pytest.raises(UserError) as caught:
        features(nn.Conv2d(1, 1, 1))
    assert str(caught.value) == NO_LINEAR
    with pytest.raises(UserError) as caught:
        features(LinearInside())(torch.zeros(1, 2, 4, 4))
    assert str(caught.value) == NO_LINEAR


def test_a_projection_head_takes_the_place_of_the_last_layer() -> None:
    # 84 -> 10 becomes 84 -> 84 -> 256 -> 10: docs/methods/training.md#moon, option of the released code.
    plain = build("lenet_cifar", (3, 32, 32), 10, seed=0)
    module = build("lenet_cifar", (3, 32, 32), 10, seed=0, projection_head=256)
    assert sum(p.numel() for p in module.parameters()) == 62006 - 850 + 84 * 85 + 256 * 85 + 10 * 257
    assert all(torch.equal(a, b) for a, b in zip(plain[:-1].parameters(), module[:-1].parameters(), strict=True))
    inputs = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    logits_bC, features_bf = features(module)(inputs)
    first, second, third = (part for part in module[-1] if isinstance(part, nn.Linear))
    expected_bf = second(torch.relu(first(plain[:-1](inputs))))
    torch.testing.assert_close(features_bf, expected_bf)
    torch.testing.assert_close(logits_bC, third(expected_bf))


@pytest.mark.parametrize(("name", "width"), [("mobilenet_v3_small", 1024), ("torchvision.resnet18", 512)])
def test_torchvisions_models_take_a_head_too(name: str, width: int) -> None:
    module = build(name, (3, 32, 32), 10, seed=0, projection_head=7).eval()
    logits_bC, features_bf = features(module)(torch.zeros(2, 3, 32, 32))
    assert (logits_bC.shape, features_bf.shape) == ((2, 10), (2, 7))
    assert sum(linear.in_features == width for linear in module.modules() if isinstance(linear, nn.Linear)) >= 2


def test_a_head_on_a_model_that_ends_in_no_linear_layer_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        build("squeezenet1_1", (3, 32, 32), 10, seed=0, projection_head=16)
    assert str(caught.value) == NO_LINEAR
