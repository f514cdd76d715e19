"""The built-in networks.

Source: docs/methods/models.md#models

Each ends in one logit per class. Shapes are those of one example, channels first: (1, 28, 28). Parameter counts include
biases.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from typing_extensions import override

Shape = tuple[int, ...]
Maker = Callable[[Shape, int], nn.Module]
"""Builds a network for the shape of one example and a number of classes."""


class Halving(nn.MaxPool2d):
    """Max pooling of 2x2 without a last odd row or column.

    Before a ReLU, which then has a quarter of the work, values and gradients are bit-identical to the other order,
    except for the sign of zero inputs. Without gradients no positions are needed: two maxima of views take a fifth of
    the time.
    """

    draws_nothing = True

    def __init__(self) -> None:
        super().__init__(2)

    @override
    def forward(self, input: Tensor) -> Tensor:  # (the name is the base class's)
        if torch.is_grad_enabled():
            pooled: Tensor = super().forward(input)
            return pooled
        height, width = (size // 2 * 2 for size in input.shape[-2:])
        rows = torch.maximum(input[..., 0:height:2, :width], input[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


class FirstConv2d(nn.Conv2d):
    """The first convolution. On a CPU it stores images of several channels with channels last, which is faster in
    oneDNN: a step of `lenet_cifar` takes 0.87 to 0.97 of the time, of `celeba_cnn` and `resnet8` 0.8
    (`python -m benchmarks.first_convolution`).
    """

    draws_nothing = True

    @override
    def forward(self, input: Tensor) -> Tensor:  # (the name is the base class's)
        if input.device.type != "cpu" or self.in_channels == 1:
            return super().forward(input)
        # torch.func.vmap does not support `contiguous(memory_format=channels_last)`.
        return super().forward(input.movedim(-3, -1).contiguous().movedim(-1, -3))


def logreg(input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression over the flattened input, of any shape: 7,850 parameters at 784 x 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


def lenet(input_shape: Shape, classes: int, padding: int = 0) -> nn.Module:
    """LeNet-5, with pixels of padding around the image.

    At 10 classes 44,426 parameters for 1x28x28, 61,706 with two pixels of padding, and 62,006 for 3x32x32.
    """
    side = (input_shape[1] + 2 * padding - 12) // 4  # after both convolutions
    return nn.Sequential(
        *(FirstConv2d(input_shape[0], 6, kernel_size=5, padding=padding), Halving(), nn.ReLU()),
        *(nn.Conv2d(6, 16, kernel_size=5), Halving(), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(16 * side**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def lenet_gi(input_shape: Shape, classes: int) -> nn.Module:
    """The "LeNet" of the gradient-inversion paper for 1x28x28, with dropout: 21,840 parameters at 10 classes."""
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 10, kernel_size=5), Halving(), nn.ReLU()),
        *(nn.Conv2d(10, 20, kernel_size=5), nn.Dropout2d(0.5), Halving(), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(20 * 4 * 4, 50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, classes)),
    )


def cnn3(input_shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and a linear layer for 1x28x28: 20,490 parameters at 10 classes."""
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1), Halving(), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, padding=1), Halving(), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 7 * 7, classes),
    )


def emnist_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """WKAFL's network for 1x28x28: 582,026 parameters at 10 classes, 608,702 at 62."""
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 32, kernel_size=5), Halving(), nn.ReLU()),
        *(nn.Conv2d(32, 64, kernel_size=5), Halving(), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64 * 4 * 4, 512), nn.ReLU(), nn.Linear(512, classes)),
    )


def celeba_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """WKAFL's network for 3x84x84: 1,600,792 parameters at 2 classes."""
    return nn.Sequential(
        *(FirstConv2d(input_shape[0], 10, kernel_size=4), Halving(), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(10 * 40 * 40, 100), nn.ReLU(), nn.Linear(100, classes)),
    )


def digits_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """A small convolutional network for 1x8x8: 5,450 parameters at 10 classes.

    Ours: on heterogeneous clients one wide layer learned faster and more steadily than deeper networks of its size.
    """
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 32, kernel_size=3, padding=1), Halving(), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 4 * 4, classes),
    )


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
}
"""Norm layers of the ResNets, by their number of channels; both have the same number of parameters.

`group`: no buffers, and an example's logits do not depend on its batch. `batch`: as in the literature, with running
statistics as buffers.
Source: docs/methods/models.md#resnet8
"""


def resnet(input_shape: Shape, classes: int, *, widths: tuple[int, ...], blocks: int, norm: str = "group") -> nn.Module:
    """Stages with `blocks` blocks each, for 3x32x32; the first block of each stage but the first halves the image.

    At 10 classes 78,042 parameters for one block of 16, 32 and 64 channels each, 11,173,962 for ResNet-18 (with another
    stem than ImageNet's): two of 64, 128, 256 and 512.
    """
    first = FirstConv2d(input_shape[0], widths[0], 3, padding=1, bias=False)
    layers: list[nn.Module] = [first, NORMS[norm](widths[0]), nn.ReLU()]
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(_Block(before, width, 2 if stage and not block else 1, NORMS[norm]))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class _Block(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + x), with a 1x1 convolution of x if its shape changes."""

    draws_nothing = True

    def __init__(self, before: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *(_convolution(before, width, 3, stride), norm(width), nn.ReLU()),
            *(_convolution(width, width, 3, 1), norm(width)),
        )
        self.shortcut = (
            nn.Identity()
            if before == width and stride == 1
            else nn.Sequential(_convolution(before, width, 1, stride), norm(width))
        )

    def forward(self, inputs_BCHW: Tensor) -> Tensor:
        return relu(self.residual(inputs_BCHW) + self.shortcut(inputs_BCHW))


def _convolution(before: int, width: int, size: int, stride: int) -> nn.Conv2d:
    # The norm that follows has a bias.
    return nn.Conv2d(before, width, size, stride=stride, padding=size // 2, bias=False)
