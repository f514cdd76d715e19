"""How alike images are: every one of some with every one of others. Pure.

Legend: r images that were made, n that are there, C channels, H and W pixels, X any shape of one example, p windows, k
pixels of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

MSE_MIN = 1e-10
"""Two images that differ by less count as differing by this much: 100 dB is the most there is."""

WINDOW = 7
LUMINANCE, CONTRAST = 0.01**2, 0.03**2

_NUMBERS_AT_A_TIME = 2**24  # of products of pixels: 64 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One way to say how alike two images are.

    name: as people write it. unit: "" for none. larger_is_closer: whether a larger number says more alike. of: made
    [r, X] and held [n, X], float32 in [0, 1], to [r, n].
    """

    name: str
    unit: str
    larger_is_closer: bool
    of: Callable[[Tensor, Tensor], Tensor]

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
