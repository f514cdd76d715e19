"""A convolution in a form that is fast for a batch of clients on CUDA.

Legend: b examples, C channels, H, W sides of an image.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from typing_extensions import override


class _Windows(torch.autograd.Function):
    """Windows of images, [..., H, W] -> [..., height, width, *kernel], a view.

    PyTorch has no rule for the gradient of `unfold` of a batch, and computes it client by client.
    """

    @staticmethod
    def forward(images: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        return images.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        images, ctx.kernel, ctx.stride = inputs
        ctx.sides = images.shape[-2:]

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Any:
        return _Folded.apply(slopes, ctx.sides, ctx.kernel, ctx.stride), None, None

    @staticmethod
    def vmap(_: Any, dims: tuple[int | None, ...], images: Tensor, *window: Any) -> tuple[Any, int]:
        assert dims[0] is not None
        return _Windows.apply(images.movedim(dims[0], 0), *window), 0


class _Folded(torch.autograd.Function):
    """The gradient of `_Windows`: the sum over the windows that a pixel is in."""

    @staticmethod
    def forward(slopes: Tensor, sides: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        *lead, height, _, _, _ = slopes.shape
        fold = torch.ops.aten.unfold_backward
        rows = fold(slopes, [*lead, height, sides[1], kernel[0]], len(lead) + 1, kernel[1], stride[1])
        images: Tensor = fold(rows, [*lead, *sides], len(lead), kernel[0], stride[0])
        return images

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        """A second derivative is not needed."""

    @staticmethod
    def vmap(_: Any, dims: tuple[int | None, ...], slopes: Tensor, *sizes: Any) -> tuple[Any, int]:
        assert dims[0] is not None
        return _Folded.apply(slopes.movedim(dims[0], 0), *sizes), 0


class ProductConv2d(nn.Module):
    """A convolution as one product of matrices.

    For a batch of clients with weights of their own, cuDNN computes a convolution client by client. A batch of products
    is one computation.
    """

    @staticmethod
    def can_replace(layer: nn.Conv2d) -> bool:
        """Whether the layer computes the same."""
        is_plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return is_plain and not isinstance(layer.padding, str)

    def __init__(self, like: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias
        self._kernel, self._stride = like.kernel_size, like.stride
        assert not isinstance(like.padding, str), like.padding
        self._padding = [side for size in reversed(like.padding) for side in (size, size)]

    @override
    def forward(self, inputs_bCHW: Tensor) -> Tensor:
        if any(self._padding):
            inputs_bCHW = pad(inputs_bCHW, self._padding)
        windows: Tensor = _Windows.apply(inputs_bCHW, self._kernel, self._stride)
        examples, _, height, width, *_ = windows.shape
        columns = windows.permute(1, 4, 5, 0, 2, 3).flatten(3).flatten(0, 2)
        outputs = self.weight.flatten(1) @ columns
        if self.bias is not None:
            outputs = outputs + self.bias.unsqueeze(1)
        return outputs.view(len(outputs), examples, height, width).transpose(0, 1)
