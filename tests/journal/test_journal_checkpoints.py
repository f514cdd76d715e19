"""Checkpoints: every state to the bit, and every damage found."""

import errno
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from unstale.conformance.policy_under_test import PolicyUnderTest, random_rounds, run
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.policies import names
from unstale_client.disk import DamagedError, NoRoomError


def same(left: Any, right: Any) -> bool:
    """Equal to the bit, types, order of keys and signs of zero included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and _bits(left) == _bits(right)
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def round_trip(folder: Path, state: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Any:
    return checkpoints.read(checkpoints.write(folder, 3, state, about or {}).path)


def test_it_is_a_file_of_safetensors_with_the_tensors_under_their_paths(tmp_path: Path) -> None:
    state = {"learner": {"model_d": torch.arange(3.0), "versions": {7: {"model_d": torch.zeros(0)}}}}
    written = checkpoints.write(tmp_path, 12, state, {"seq": 5})
    assert written.path == tmp_path / "00000012.safetensors"
    assert written.size_bytes == written.path.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["00000012.safetensors"]
    tensors = load_file(written.path)
    assert sorted(tensors) == ["state.learner.model_d", "state.learner.versions.7.model_d"]
    assert tensors["state.learner.model_d"].tolist() == [0.0, 1.0, 2.0]
    with safe_open(written.path, "pt") as opened:
        assert opened.metadata()["format"] == "unstale-checkpoint-1"


def test_values_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    state = {
        "numbers": [0, -1, 2**200, True, None, 0.1, -0.0, 5e-324, math.inf, -math.inf],
        "nan": struct.unpack("d", bytes([1, 2, 3, 4, 5, 6, 0xF8, 0x7F]))[0],
        "texts": ("", "ü€😀", 'quote " and \\', b"", b"\x00\xff"),
        "nested": {"": {}, "empty": ((), [], {}), "tuple": {"in": [({"deep": (1,)},)]}},
        "keys": {1: "int", "1": "text", False: "bool", None: "none"},
    }
    found, about = round_trip(tmp_path, state, {"seq": 2**63 - 1, "tensor": torch.ones(1)})
    assert same(found, state)
    assert same(about, {"seq": 2**63 - 1, "tensor": torch.ones(1)})


@pytest.mark.parametrize("dtype", checkpoints._TYPES.values(), ids=str)
def test_tensors_of_every_type_and_shape_come_back_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    numbers = torch.arange(24) % 2 if dtype is torch.bool else torch.arange(24) - 12 * (dtype != torch.uint8)
    whole = numbers.to(dtype)
    state = {
        "scalar": whole[3].clone(),
        "none": whole[:0],
        "none_by_five": torch.empty(0, 5, dtype=dtype),
        "cube": whole.view(2, 3, 4),
        "turned": whole.view(4, 6).t(),
        "every_second": whole[::2],
        "part": whole[5:9],
        "flag": torch.tensor([True]),  # one byte, before what must begin at a multiple of eight
        "wide": torch.tensor([1.5], dtype=torch.float64),
    }
    found, _ = round_trip(tmp_path, state)
    assert same(found, state)
    assert all(tensor.is_contiguous() for tensor in found.values())
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in found.values())


def test_infinities_and_the_bits_of_nan_in_tensors_stay(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1], dtype=torch.int32)
    found, _ = round_trip(tmp_path, {"odd": bits.view(torch.float32)})
    assert found["odd"].view(torch.int32).tolist() == bits.tolist()


def test_paths_that_read_alike_are_kept_apart(tmp_path: Path) -> None:
    state = {"a": {"b": torch.zeros(1), 1: torch.ones(1), "1": torch.ones(2)}, "a.b": torch.ones(3)}
    found, _ = round_trip(tmp_path, state)
    assert same(found, state)


def test_a_tensor_that_learns_is_written_without_its_gradient(tmp_path: Path) -> None:
    found, _ = round_trip(tmp_path, {"weight": torch.ones(2, requires_grad=True)})
    assert same(found, {"weight": torch.ones(2)})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(plain)
def test_any_plain_value_is_restored(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    found, _ = round_trip(tmp_path_factory.mktemp("checkpoints"), {"value": value})
    assert same(found["value"], value)


@pytest.mark.parametrize("name", names())
def test_every_policy_resumes_bit_for_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    settings = {"probabilities": 0.5} if name == "fedavg-is" else {}
    tested = PolicyUnderTest(name=name, device=torch.device("cpu"), settings=settings)
    first, second = tested.make(), tested.make()
    batches = random_rounds(first, 6)
    half = len(batches) // 2
    run(first, batches[:half])
    state = first.state_dict()
    found, _ = round_trip(tmp_path, {"policy": state})
    assert same(found, {"policy": state})
    second.load_state_dict(found["policy"])
    assert same(run(first, batches[half:]), run(second, batches[half:]))
    assert same(first.state_dict(), second.state_dict())


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({1}, r"state\.policy\.1 is a set"),
        (torch.zeros(1, dtype=torch.complex64), r"state\.policy\.1 is a tensor of torch\.complex64"),
        ({(1, 2): 0}, r"key \(1, 2\) of state\.policy\.1 is a tuple"),
        ({1.5: 0}, r"key 1\.5 of state\.policy\.1 is a float"),
    ],
)
def test_what_cannot_be_kept_is_named(tmp_path: Path, value: Any, what: str) -> None:
    with pytest.raises(UserError, match=what):
        checkpoints.write(tmp_path, 1, {"policy": [0, value]}, {})
    assert list(tmp_path.iterdir()) == []


# --- damage ---


def small(folder: Path) -> Path:
    return checkpoints.write(folder, 1, {"a": torch.ones(2), "b": [1.5, "x"]}, {"seq": 1}).path


def test_a_flipped_bit_of_any_byte_is_found(tmp_path: Path) -> None:
    path = small(tmp_path)
    whole = path.read_bytes()
    for byte in range(len(whole)):
        data = bytearray(whole)
        data[byte] ^= 1 << byte % 8
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"checkpoint .*00000001\.safetensors .*resume from an older one"):
            checkpoints.read(path)


def test_a_cut_anywhere_is_found_and_so_is_what_was_added(tmp_path: Path) -> None:
    path = small(tmp_path)
    whole = path.read_bytes()
    for data in [whole[:size] for size in range(len(whole))] + [whole + b"\x00"]:
        path.write_bytes(data)
        with pytest.raises(DamagedError):
            checkpoints.read(path)


def test_a_missing_file_is_damage_too(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"00000001\.safetensors is missing"):
        checkpoints.read(tmp_path / "00000001.safetensors")


def test_a_foreign_model_file_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DamagedError, match="has no checkpoint header"):
        checkpoints.read(tmp_path / "model.safetensors")


def test_a_file_larger_than_one_read_is_checked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_CHUNK_BYTES", 64)
    state = {"a": torch.arange(100.0), "b": [1] * 100}
    assert same(round_trip(tmp_path, state)[0], state)


def test_a_full_disk_leaves_no_partial_file_and_the_older_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path)
    before = path.read_bytes()
    real = os.pwrite

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        if offset >= 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:50], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NoRoomError, match=r"cannot write .*00000001\.safetensors: the disk is full"):
        checkpoints.write(tmp_path, 1, {"a": torch.zeros(100)}, {})
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_checkpoint_that_replaced_the_one_of_its_row_covers_more_events(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 0, {"coordinator": "at event 0"}, {"seq": 0})
    path = checkpoints.write(tmp_path, 0, {"coordinator": "at event 10"}, {"seq": 10}).path
    assert checkpoints.read_at(path, 0, last_seq=10) == ({"coordinator": "at event 10"}, 10)


@pytest.mark.parametrize(("row_seq", "last_seq"), [(0, 9), (11, 12)])
def test_a_checkpoint_before_its_row_or_after_the_database_is_damage(
    tmp_path: Path, row_seq: int, last_seq: int
) -> None:
    path = checkpoints.write(tmp_path, 0, {}, {"seq": 10}).path
    with pytest.raises(DamagedError, match=f"covers events up to 10, expected {row_seq} as in run.db"):
        checkpoints.read_at(path, row_seq, last_seq=last_seq)
