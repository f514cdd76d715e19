"""The device of a policy's memory of all clients."""

import gc
import os
from pathlib import Path

import pytest
import torch

from support.simulated_device import CUDA, simulated_device
from unstale.config.memory import allocator
from unstale.errors import UserError

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["auto", "host", "mapped"])
def test_memory_is_zeros_that_can_be_written_and_read(kind: str, tmp_path: Path) -> None:
    memory_NX = allocator(kind, str(tmp_path), CPU)(3, 1000)
    assert (memory_NX.shape, memory_NX.dtype, memory_NX.device) == ((3, 1000), torch.float32, CPU)
    assert not memory_NX.any()
    memory_NX[1].fill_(2.5)
    assert memory_NX.sum(1).tolist() == [0.0, 2500.0, 0.0]


def test_mapped_memory_leaves_no_file_while_it_is_used_or_afterwards(tmp_path: Path) -> None:
    memory_NX = allocator("mapped", str(tmp_path), CPU)(2, 5000)
    memory_NX.fill_(1.0)
    assert list(tmp_path.iterdir()) == []
    assert memory_NX.sum() == 10_000
    del memory_NX
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_two_mapped_memories_are_not_the_same(tmp_path: Path) -> None:
    allocate = allocator("mapped", str(tmp_path), CPU)
    first, second = allocate(1, 10), allocate(1, 10)
    first.fill_(1.0)
    assert not second.any()


def test_mapped_memory_needs_no_folder_of_its_own() -> None:
    assert not allocator("mapped", None, CPU)(1, 10).any()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves no room beforehand")
def test_a_disk_that_is_too_small_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        allocator("mapped", str(tmp_path), CPU)(2**30, 2**30)
    sentence = str(raised.value)
    assert sentence.startswith(f"policy.memory_folder '{tmp_path}' cannot hold 4,611,686,018,427,387,904 bytes (")
    assert sentence.endswith("); name a folder with more free space")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "where"), [("host", CPU), ("pinned", torch.device("cuda"))])
def test_too_little_host_memory_is_an_error_of_the_user(kind: str, where: torch.device) -> None:
    with pytest.raises(UserError, match=r"4,611,686,018,427,387,904 bytes, cannot be allocated; set policy\.memory to"):
        allocator(kind, None, where)(2**30, 2**30)


@pytest.mark.parametrize("kind", ["device", "pinned"])
def test_memory_of_a_cuda_device_needs_one(kind: str) -> None:
    with pytest.raises(UserError) as raised:
        allocator(kind, None, CPU)
    assert str(raised.value) == (
        f"policy.memory is '{kind}' with device cpu, expected auto, host or mapped without CUDA"
    )


def test_auto_reads_the_memory_of_the_device_once_and_uses_the_host_after_the_first_that_does_not_fit() -> None:
    read = []

    def device_bytes(where: torch.device) -> int:
        read.append(where)
        return 2 * 4 * 100

    with simulated_device():
        allocate = allocator("auto", None, CUDA, device_bytes)
        assert read == []
        devices = [allocate(*shape).device.type for shape in ((9, 10), (11, 1), (1, 1))]
    assert devices == ["cuda", "cpu", "cpu"]
    assert read == [CUDA]


def test_auto_without_cuda_is_host_memory_and_reads_no_memory_of_a_device() -> None:
    def device_bytes(_: torch.device) -> int:
        raise AssertionError

    assert allocator("auto", None, CPU, device_bytes)(2, 3).device == CPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_memory_is_page_locked_zeros() -> None:
    memory_NX = allocator("pinned", None, torch.device("cuda"))(2, 10)
    assert memory_NX.is_pinned()
    assert not memory_NX.any()


def test_a_missing_folder_is_reported_before_anything_is_allocated(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        allocator("mapped", str(tmp_path / "missing"), CPU)
    assert str(raised.value) == f"policy.memory_folder is '{tmp_path}/missing', expected a folder that exists"
