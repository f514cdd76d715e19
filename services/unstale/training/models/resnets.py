"""Residual networks for 3x32x32, and their norm layers.

Source: docs/methods/models.md#resnet8

`group` is GroupNorm with 2 groups: no buffers, and an example's logits do not depend on its batch. `batch` is
BatchNorm, as in the literature, whose running statistics are buffers. Both have the same number of parameters.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

from unstale.training.models.networks import FirstConv2d, Shape

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(2, channels),
    "batch": nn.BatchNorm2d,
}


def resnet8(input_shape: Shape, classes: int, norm: str = "group") -> nn.Module:
    """Three blocks of 16, 32 and 64 channels for 3x32x32: 78,042 parameters at 10 classes."""
    return _resnet(input_shape[0], classes, (16, 32, 64), blocks=1, norm=norm)


def resnet18(input_shape: Shape, classes: int, norm: str = "group") -> nn.Module:
    """ResNet-18 with the stem for 3x32x32 instead of ImageNet's: 11,173,962 parameters at 10 classes."""
    return _resnet(input_shape[0], classes, (64, 128, 256, 512), blocks=2, norm=norm)


def _resnet(channels: int, classes: int, widths: tuple[int, ...], *, blocks: int, norm: str) -> nn.Module:
    """Stages with `blocks` blocks each; the first block of each stage but the first halves the image."""
    first = FirstConv2d(channels, widths[0], 3, padding=1, bias=False)
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
