"""How alike images look: LPIPS, where the package and the weights of its network are on this machine.

Legend: n images, r that were made, C channels, H and W pixels, f features.
"""

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from unstale.privacy.image_similarity import Measure

WEIGHTS = "alexnet-owt-7be5be79.pth"  # torchvision's name for them
SIDE = 64  # pixels; smaller images are enlarged to it, as the network halves them five times
_IMAGES_AT_A_TIME = 256


class LeftOut(Exception):  # noqa: N818  (nothing went wrong)
    """LPIPS cannot be had here. The text says why, and what to do."""


def measure(shape: Sequence[int]) -> Measure:
    """LPIPS for examples of a shape. Nothing is downloaded. Raises LeftOut where it cannot be had."""
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
