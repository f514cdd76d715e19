"""How alike images are, and look: every one of some with every one of others. Pure.

Legend: r images that were made, n that are there, C channels, H and W pixels, X any shape of one example, p windows, k
pixels of one, f features of a network.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

MSE_MIN = 1e-10
"""Two images that differ by less count as differing by this much: 100 dB is the most there is."""

WINDOW = 7
LUMINANCE, CONTRAST = 0.01**2, 0.03**2
WEIGHTS = "alexnet-owt-7be5be79.pth"  # of LPIPS's network: torchvision's name for them
SIDE = 64  # pixels; LPIPS enlarges smaller images to it, as the network halves them five times

_NUMBERS_AT_A_TIME = 2**24  # of products of pixels: 64 MiB
_IMAGES_AT_A_TIME = 256


class LeftOut(Exception):  # noqa: N818  (nothing went wrong)
    """LPIPS cannot be had here. The text says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One way to say how alike two images are."""

    name: str  # as people write it
    unit: str  # "" for none
    larger_is_closer: bool
    of: Callable[[Tensor, Tensor], Tensor]  # made [r, X] and held [n, X], float32 in [0, 1], to [r, n]

    @property
    def key(self) -> str:
        """The name in what programs read."""
        return self.name.lower()

    def closest(self, made_rX: Tensor, held_nX: Tensor) -> tuple[Tensor, Tensor]:
        """Of each that was made the closest that is there: how alike they are, [r], and which it is, [r]."""
        alike_rn = self.of(made_rX, held_nX)
        best = alike_rn.max(1) if self.larger_is_closer else alike_rn.min(1)
        return best.values, best.indices


def psnr(made_rX: Tensor, held_nX: Tensor) -> Tensor:
    """Peak signal-to-noise ratio, dB, [r, n]: -10 log10 of the mean squared difference of pixels in [0, 1]."""
    made_rp, held_np = made_rX.flatten(1), held_nX.flatten(1)
    apart_rn = torch.cdist(made_rp, held_np, compute_mode="donot_use_mm_for_euclid_dist")
    return -10 * (apart_rn.square() / made_rp.shape[1]).clamp(min=MSE_MIN).log10()


def ssim(made_rCHW: Tensor, held_nCHW: Tensor) -> Tensor:
    """Structural similarity, [r, n], 1 for equal images: its mean over windows of 7 x 7 pixels and over channels.

        (2 m_x m_y + 0.01^2) (2 s_xy + 0.03^2) / ((m_x^2 + m_y^2 + 0.01^2) (s_x^2 + s_y^2 + 0.03^2))

    m, s: means and (co)variances in a window, those with 48 in place of 49; windows lie inside the image.
    Windows are uniform, as scikit-image has them by default, which takes one pair at a time.
    Source: SSIM (Wang et al., IEEE TIP 2004), docs/methods/measures.md#structural-similarity
    """
    windows = prod(made_rCHW.shape[1:]) // made_rCHW.shape[2]  # that are looked at together
    at_a_time = max(1, _NUMBERS_AT_A_TIME // (windows * len(held_nCHW)))
    return torch.cat([_ssim(some, held_nCHW) for some in torch.split(made_rCHW, at_a_time)])


def _ssim(made_rCHW: Tensor, held_nCHW: Tensor) -> Tensor:
    rows = made_rCHW.shape[2] - WINDOW + 1
    total_rn = sum(
        (_of_windows(_windows(made_rCHW, row), _windows(held_nCHW, row)) for row in range(rows)),
        torch.zeros(len(made_rCHW), len(held_nCHW)),
    )
    return total_rn / rows


def _windows(images_nCHW: Tensor, row: int) -> Tensor:
    """The windows of a row, of all channels: [windows, n, 49]."""
    windows = images_nCHW[:, :, row : row + WINDOW].unfold(3, WINDOW, 1)  # [n, C, 7, windows, 7]
    return windows.permute(1, 3, 0, 2, 4).reshape(-1, len(images_nCHW), WINDOW**2)


def _of_windows(x_prk: Tensor, y_pnk: Tensor) -> Tensor:
    """The mean over windows p, [r, n]."""
    mean_x, mean_y = x_prk.mean(2)[:, :, None], y_pnk.mean(2)[:, None]
    x_prk, y_pnk = x_prk - mean_x, y_pnk - mean_y.transpose(1, 2)
    variance_x = x_prk.square().sum(2)[:, :, None] / (WINDOW**2 - 1)
    variance_y = y_pnk.square().sum(2)[:, None] / (WINDOW**2 - 1)
    covariance = x_prk @ y_pnk.transpose(1, 2) / (WINDOW**2 - 1)
    brightness = (2 * mean_x * mean_y + LUMINANCE) / (mean_x.square() + mean_y.square() + LUMINANCE)
    structure = (2 * covariance + CONTRAST) / (variance_x + variance_y + CONTRAST)
    return torch.mean(brightness * structure, 0)


PSNR = Measure(name="PSNR", unit="dB", larger_is_closer=True, of=psnr)
SSIM = Measure(name="SSIM", unit="", larger_is_closer=True, of=ssim)


def is_image(shape: Sequence[int]) -> bool:
    """Whether examples of a shape have channels, and pixels enough for windows."""
    return len(shape) == 3 and min(shape[1:]) >= WINDOW


def lpips(shape: Sequence[int]) -> Measure:
    """LPIPS for examples of a shape. Nothing is downloaded. Raises LeftOut without the package or its weights."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise LeftOut(f"LPIPS is left out: examples of shape {tuple(shape)} are no grey or colour images")
    try:
        package = importlib.import_module("lpips")
    except ImportError:
        raise LeftOut(
            "LPIPS is left out: package lpips is not installed; get it with: pip install 'unstale[audit]'"
        ) from None
    weights = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    if not weights.is_file():
        raise LeftOut(
            f"LPIPS is left out: {weights} is not there; get it with: "
            "python -c \"import torchvision; torchvision.models.alexnet(weights='IMAGENET1K_V1')\""
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks torchvision in a way that is no longer liked
        network = package.LPIPS(net="alex", verbose=False)
    return of_network(network)


def of_network(network: Any) -> Measure:
    """The measure of a `lpips.LPIPS`."""

    def of(made_rCHW: Tensor, held_nCHW: Tensor) -> Tensor:
        made_rf, held_nf = features(network, made_rCHW), features(network, held_nCHW)
        return torch.cdist(made_rf, held_nf).square()

    return Measure(name="LPIPS", unit="", larger_is_closer=False, of=of)


def features(network: Any, images_nCHW: Tensor) -> Tensor:
    """Vectors [n, f] whose squared distances are LPIPS: so each image goes through the network once, not once a pair.

        LPIPS(x, y) = sum over layers, channels c, places p:  w_c / P (x_cp / |x_p| - y_cp / |y_p|)^2

    images_nCHW: in [0, 1], of one channel or three.
    Source: LPIPS (Zhang et al., CVPR 2018), docs/methods/measures.md#perceptual-similarity
    """
    height, width = (max(side, SIDE) for side in images_nCHW.shape[2:])
    if (height, width) != images_nCHW.shape[2:]:
        images_nCHW = interpolate(images_nCHW, (height, width), mode="bilinear", align_corners=False)
    images_n3HW = images_nCHW.expand(-1, 3, -1, -1)
    return torch.cat([_features(network, some) for some in torch.split(images_n3HW, _IMAGES_AT_A_TIME)])


@torch.no_grad()
def _features(network: Any, images_n3HW: Tensor) -> Tensor:
    layers = network.net(network.scaling_layer(2 * images_n3HW - 1))
    parts = []
    for layer_ncHW, linear in zip(layers, network.lins, strict=True):
        weight_c = linear.model[-1].weight.flatten()
        root_c = (weight_c / layer_ncHW[0, 0].numel()).sqrt()
        parts.append((normalize(layer_ncHW, dim=1, eps=1e-10) * root_c[:, None, None]).flatten(1))
    return torch.cat(parts, dim=1)
