"""Similarity of images, by hand, and against scikit-image and lpips if installed."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unstale.privacy import image_similarity
from unstale.privacy.image_similarity import PSNR, Measure, is_image, psnr, ssim
from unstale.seeds import Stream, stream


def drawn(*shape: int) -> Tensor:
    return torch.from_numpy(stream(0, Stream.PARTITION, *shape).random(shape, dtype=np.float32))


def two_patterns() -> tuple[Tensor, Tensor]:
    rows, columns = np.mgrid[:9, :11]
    patterns = ((rows * 7 + columns * 3) % 11) / 10, ((rows * 5 + columns * columns) % 13) / 12
    first, second = (torch.tensor(pattern, dtype=torch.float32) for pattern in patterns)
    return first, second


def test_psnr_is_20_db_where_every_pixel_is_a_tenth_off() -> None:
    # -10 log10(0.1^2) = 20, and -10 log10(0.2^2) = 13.979.
    made = torch.full((1, 1, 2, 3), 0.5)
    held = torch.stack([torch.full((1, 2, 3), 0.6), torch.full((1, 2, 3), 0.3), torch.full((1, 2, 3), 0.5)])
    assert psnr(made, held).tolist() == [pytest.approx([20.0, 13.9794, 100.0], abs=1e-3)]


def test_psnr_is_of_examples_of_any_shape() -> None:
    assert psnr(torch.zeros(2, 5), torch.ones(3, 5)).tolist() == [[0.0] * 3] * 2


def test_ssim_of_plain_images_is_their_brightness_term() -> None:
    # Constant images: (2 * 0.2 * 0.6 + 1e-4) / (0.04 + 0.36 + 1e-4) = 0.60010.
    alike = ssim(torch.full((1, 1, 8, 8), 0.2), torch.full((1, 1, 8, 8), 0.6))
    assert alike.item() == pytest.approx(0.2401 / 0.4001, abs=1e-6)


def test_ssim_of_an_image_with_itself_is_1() -> None:
    images = drawn(3, 2, 8, 9)
    assert ssim(images, images).diagonal().tolist() == pytest.approx([1.0] * 3, abs=1e-6)


def test_ssim_equals_that_of_scikit_image() -> None:
    # structural_similarity of scikit-image 0.26, data_range=1, of channels where there are two.
    first, second = two_patterns()
    assert ssim(first[None, None], second[None, None]).item() == pytest.approx(0.20926679, abs=1e-6)
    assert ssim(first[None, None], (0.5 * first + 0.2)[None, None]).item() == pytest.approx(0.79694797, abs=1e-6)
    two_channels = torch.stack([first, second])[None]
    others = torch.stack([second * 0.7 + 0.1, second * second])[None]
    assert ssim(two_channels, others).item() == pytest.approx(0.54861553, abs=1e-6)


def test_ssim_of_many_pairs_equals_that_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics", reason="scikit-image is not installed")
    made, held = drawn(3, 3, 10, 9), drawn(4, 3, 10, 9)
    expected = [
        [metrics.structural_similarity(x, y, data_range=1.0, channel_axis=0) for y in held.numpy()]
        for x in made.numpy()
    ]
    np.testing.assert_allclose(ssim(made, held).numpy(), expected, atol=1e-5)


def test_ssim_does_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made, held = drawn(5, 1, 9, 8), drawn(4, 1, 9, 8)
    together = ssim(made, held)
    monkeypatch.setattr(image_similarity, "_NUMBERS_AT_A_TIME", 1)
    torch.testing.assert_close(ssim(made, held), together)


def test_the_closest_is_the_largest_or_the_smallest() -> None:
    made, held = torch.tensor([[0.5], [0.9]]), torch.tensor([[0.0], [0.8], [0.6]])
    closest, which = PSNR.closest(made, held)
    assert which.tolist() == [2, 1]
    assert closest.tolist() == pytest.approx([20.0, 20.0], abs=1e-3)
    apart = Measure(name="L1", unit="", larger_is_closer=False, of=torch.cdist)
    assert apart.closest(made, held)[1].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("shape", "windows_fit"), [((1, 7, 7), True), ((3, 32, 32), True), ((1, 6, 9), False), ((64,), False)]
)
def test_an_image_has_channels_and_seven_pixels(shape: tuple[int, ...], windows_fit: bool) -> None:
    assert is_image(shape) is windows_fit


# --- LPIPS ---


class OneLayer:
    """A stub of the network of lpips: one layer, which is the image."""

    def __init__(self, weights: list[float]) -> None:
        linear = nn.Conv2d(3, 1, 1, bias=False)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weights).reshape(1, 3, 1, 1))
        self.lins = [SimpleNamespace(model=[linear])]

    def scaling_layer(self, images: Tensor) -> Tensor:
        return images

    def net(self, images: Tensor) -> list[Tensor]:
        return [images]


def test_lpips_is_the_weighted_distance_of_directions() -> None:
    # In [-1, 1]: (0.6, 0.8, 0) and (0, 0, 0.5), of lengths 1 and 0.5: (0.6, 0.8, 0) against (0, 0, 1), so
    # 1 * 0.36 + 2 * 0.64 + 3 * 1 = 4.64 at each place, and so on average over places.
    def image(channels: list[float]) -> Tensor:
        return ((torch.tensor(channels) + 1) / 2).reshape(1, 3, 1, 1).expand(1, 3, 64, 64)

    measure = image_similarity.of_network(OneLayer([1.0, 2.0, 3.0]))
    held = torch.cat([image([0.0, 0.0, 0.5]), image([0.3, 0.4, 0.0])])
    (apart,) = measure.of(image([0.6, 0.8, 0.0]), held).tolist()
    assert apart == pytest.approx([4.64, 0.0], abs=1e-3)
    assert measure.closest(image([0.6, 0.8, 0.0]), held)[1].tolist() == [1]


def test_lpips_equals_that_of_its_package() -> None:
    package = pytest.importorskip("lpips", reason="lpips is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls a deprecated function of torchvision
        network = package.LPIPS(net="alex", pnet_rand=True, verbose=False)
    made, held = drawn(2, 3, 64, 64), drawn(3, 3, 64, 64)
    with torch.no_grad():
        expected = torch.stack([network(x.expand_as(held), held, normalize=True).flatten() for x in made])
    torch.testing.assert_close(image_similarity.of_network(network).of(made, held), expected, rtol=1e-3, atol=1e-4)


def test_lpips_is_left_out_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(image_similarity.LeftOut, match=r"not installed; get it with: pip install 'unstale\[audit\]'"):
        image_similarity.lpips((1, 28, 28))


def test_lpips_is_left_out_where_its_weights_are_missing_and_nothing_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(**_: Any) -> None:
        raise AssertionError("would download")

    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=fail))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(image_similarity.LeftOut, match=r"alexnet-owt-7be5be79\.pth is not there; get it with: python"):
        image_similarity.lpips((1, 28, 28))


def test_lpips_is_left_out_without_images() -> None:
    with pytest.raises(image_similarity.LeftOut, match=r"shape \(2, 8, 8\) are no grey or colour images"):
        image_similarity.lpips((2, 8, 8))
