"""The device of a name on different machines."""

import os

import pytest
import torch

from unstale.errors import UserError
from unstale.learner import device


def machine(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    """Simulate a machine with so many CUDA devices, with or without MPS."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "name", "expected"),
    [
        (0, False, "auto", "cpu"),
        (0, True, "auto", "mps"),
        (2, False, "auto", "cuda"),
        (2, True, "auto", "cuda"),
        (2, False, "cpu", "cpu"),
        (2, False, "cuda", "cuda"),
        (2, False, "cuda:1", "cuda:1"),
        (0, True, "mps", "mps"),
    ],
)
def test_names_select_devices(monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, name: str, expected: str) -> None:
    machine(monkeypatch, cuda=cuda, mps=mps)
    assert device.choose(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("cuda", "name", "expected"),
    [
        (0, "gpu", "device is 'gpu', expected auto, cpu, cuda, cuda:<number> or mps"),
        (0, "meta", "device is 'meta', expected auto, cpu, cuda, cuda:<number> or mps"),
        (0, "cuda", "device is 'cuda', but PyTorch finds 0 CUDA devices; use auto or cpu"),
        (2, "cuda:2", "device is 'cuda:2', but PyTorch finds 2 CUDA devices; use auto or cpu"),
        (2, "mps", "device is 'mps', but this machine has none; use auto or cpu"),
    ],
)
def test_a_missing_device_is_one_error_sentence(
    monkeypatch: pytest.MonkeyPatch, cuda: int, name: str, expected: str
) -> None:
    machine(monkeypatch, cuda=cuda)
    with pytest.raises(UserError) as caught:
        device.choose(name)
    assert str(caught.value) == expected


def read() -> dict[str, object]:
    """All settings of the arithmetic, by both of PyTorch's names."""
    backends = torch.backends
    return {
        "products": backends.cuda.matmul.fp32_precision,
        "convolutions": backends.cudnn.conv.fp32_precision,
        "recurrent": backends.cudnn.rnn.fp32_precision,
        "products, older name": backends.cuda.matmul.allow_tf32,
        "cuDNN, older name": backends.cudnn.allow_tf32,
        "cuDNN deterministic": backends.cudnn.deterministic,
        "cuDNN benchmark": backends.cudnn.benchmark,
        "deterministic": torch.get_deterministic_debug_mode(),
    }


@pytest.mark.parametrize(("precision", "name"), [("strict", "ieee"), ("tf32", "tf32")])
def test_the_precision_of_a_cuda_device_is_set_by_both_of_its_names_and_restored(
    monkeypatch: pytest.MonkeyPatch, precision: device.Precision, name: str
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = read()
    with device.arithmetic_restored():
        device.set_precision(torch.device("cuda"), precision)
        assert read() == {
            "products": name,
            "convolutions": name,
            "recurrent": name,
            "products, older name": name == "tf32",
            "cuDNN, older name": name == "tf32",
            "cuDNN deterministic": True,
            "cuDNN benchmark": False,
            "deterministic": 1,
        }
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert read() == before


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_other_devices_keep_the_arithmetic_of_pytorch(name: str) -> None:
    before = read()
    device.set_precision(torch.device(name), "tf32")
    assert read() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_strict_products_are_float32_and_tf32_products_are_not() -> None:
    # 1 + 2^-12 has no TF32 number: it is rounded to 1.
    left = torch.full((512, 512), 1 + 2.0**-12, device="cuda")
    right = torch.eye(512, device="cuda")
    with device.arithmetic_restored():
        device.set_precision(left.device, "strict")
        assert torch.equal(left @ right, left)
        device.set_precision(left.device, "tf32")
        assert not torch.equal(left @ right, left)
