"""The device of a name on different machines."""

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
