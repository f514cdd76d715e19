"""The golden vectors in both directions: a changed byte is a changed contract."""

import hashlib
import importlib.util
import json
import shutil
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from unstale_proto import payload, signature
from unstale_proto.codec import TYPES, decode, encode
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Message, TensorSpec

VECTORS = Path(__file__).parents[2] / "proto" / "vectors"
INDEX: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text())


@cache
def script() -> Any:
    """proto/vectors/write.py, as a module."""
    specification = importlib.util.spec_from_file_location("write_vectors", VECTORS / "write.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def message_of(name: str) -> Message:
    message: Message = script().message_of(INDEX["headers"][name])
    return message


def test_every_type_of_message_has_a_vector() -> None:
    assert {entry["type"] for entry in INDEX["headers"].values()} == TYPES.keys()


def test_every_file_is_described_and_every_description_has_its_file() -> None:
    described = {f"{name}.bin" for name in INDEX["headers"]} | {"payload.bin"}
    groups = ("encodings", "accepted", "invalid", "malformed")
    described |= {f"{group}/{name}.bin" for group in groups for name in INDEX[group]}
    assert {path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.bin")} == described


@pytest.mark.parametrize("name", INDEX["headers"])
def test_a_golden_header_is_read_and_written_to_the_byte(name: str) -> None:
    header = (VECTORS / f"{name}.bin").read_bytes()
    assert decode(header) == message_of(name)
    assert encode(message_of(name)) == header
    assert hashlib.sha256(header).hexdigest() == INDEX["headers"][name]["sha256"]


@pytest.mark.parametrize("name", INDEX["accepted"])
def test_another_spelling_of_a_header_is_read_as_the_same_message(name: str) -> None:
    header = (VECTORS / "accepted" / f"{name}.bin").read_bytes()
    golden = INDEX["accepted"][name]["decodes_as"]
    assert header.hex() == INDEX["accepted"][name]["hex"]
    assert header != (VECTORS / f"{golden}.bin").read_bytes()
    assert decode(header) == message_of(golden)


@pytest.mark.parametrize("name", INDEX["invalid"])
def test_an_invalid_header_is_refused_for_the_documented_reason(name: str) -> None:
    header = (VECTORS / "invalid" / f"{name}.bin").read_bytes()
    assert header.hex() == INDEX["invalid"][name]["hex"]
    with pytest.raises(RemoteContractError) as caught:
        decode(header)
    assert caught.value.reason == INDEX["invalid"][name]["reason"]


def test_the_payload_vector_fits_its_model() -> None:
    vector = INDEX["payload"]
    tensors = [TensorSpec.model_validate_json(json.dumps(tensor)) for tensor in vector["tensors"]]
    content = (VECTORS / "payload.bin").read_bytes()
    assert signature.digest(tensors) == vector["signature"]
    assert signature.payload_bytes(tensors) == vector["payload_bytes"] == len(content) == 32
    assert struct.unpack("<8f", content) == tuple(
        struct.unpack("<f", struct.pack("<f", number))[0] for number in vector["numbers"]
    )
    assert hashlib.sha256(content).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("name", INDEX["encodings"])
def test_a_golden_payload_is_written_to_the_byte_and_read_to_the_bit(name: str) -> None:
    vector = INDEX["encodings"][name]
    encoding, numbers = script().encoding_of(vector), bytes.fromhex(vector["numbers"])
    content = (VECTORS / "encodings" / f"{name}.bin").read_bytes()
    assert hashlib.sha256(content).hexdigest() == vector["sha256"]
    assert len(content) == encoding.payload_bytes
    head = 4 * encoding.dimension
    parts = [memoryview(part) for part in (numbers[:head], numbers[head:]) if part]
    assert b"".join(encoding.frames(parts)) == content
    decoded = np.frombuffer(b"".join(map(bytes, encoding.decode([content]))), "<f4")
    expected = np.frombuffer(bytes.fromhex(vector["decoded"]), "<f4")
    assert np.array_equal(decoded, expected, equal_nan=True)
    assert np.array_equal(np.signbit(decoded)[~np.isnan(expected)], np.signbit(expected)[~np.isnan(expected)])


# From the text of PROTOCOL.md 9.1 alone: NaN of either sign, with any other bits.
NANS = {
    "bfloat16_nans": "c07f c0ff c07f c0ff c07f c0ff",
    "float16_nans": "007e 00fe 007e 00fe 007e 00fe",
    "int8_nans": "0000c07f 0000c07f" + 16 * "00",
    "top_k_nans": "00000000 01000000 02000000 0000c07f 0000c0ff 0100807f",
}


@pytest.mark.parametrize("name", NANS)
def test_a_nan_keeps_its_sign_in_its_encoding(name: str) -> None:
    assert (VECTORS / "encodings" / f"{name}.bin").read_bytes() == bytes.fromhex(NANS[name])


def test_checksums_are_those_of_the_pattern() -> None:
    sizes = [each["bytes"] for each in INDEX["checksums"]]
    assert sizes == [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 4 * 1024 * 1024]
    assert bytes(script().pattern(259)[-4:]) == bytes([(131 * 255) % 256, 1, 132, (131 * 258 + 1) % 256])
    for each in INDEX["checksums"]:
        assert xxhash.xxh3_64_hexdigest(script().pattern(each["bytes"])) == each["xxh3"]
    assert INDEX["checksums"][0]["xxh3"] == "2d06800538d394c2"  # the published value


@pytest.mark.parametrize("name", INDEX["malformed"])
def test_a_malformed_payload_is_refused(name: str) -> None:
    vector = INDEX["malformed"][name]
    content = (VECTORS / "malformed" / f"{name}.bin").read_bytes()
    encoding = script().encoding_of(vector)
    assert content.hex() == vector["hex"] and len(content) == encoding.payload_bytes
    with pytest.raises(RemoteContractError) as caught:
        list(encoding.decode([content]))
    assert caught.value.reason == Reason.MALFORMED_PAYLOAD


@pytest.mark.parametrize("vector", INDEX["frames"]["split"], ids=lambda vector: vector["payload_bytes"])
def test_a_payload_is_split_as_documented(vector: dict[str, Any]) -> None:
    frames = payload.split(memoryview(bytes(vector["payload_bytes"])))
    assert [len(frame) for frame in frames] == vector["frame_bytes"]
    payload.check(vector["frame_bytes"], vector["payload_bytes"])


@pytest.mark.parametrize("vector", INDEX["frames"]["accepted"], ids=lambda vector: vector["why"])
def test_another_split_is_accepted(vector: dict[str, Any]) -> None:
    payload.check(vector["frame_bytes"], vector["payload_bytes"])


@pytest.mark.parametrize("vector", INDEX["frames"]["wrong_size"], ids=lambda vector: vector["why"])
def test_a_wrong_split_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteContractError) as caught:
        payload.check(vector["frame_bytes"], vector["payload_bytes"])
    assert caught.value.reason == Reason.WRONG_SIZE


def test_writing_vectors_adds_missing_files_and_leaves_others(tmp_path: Path) -> None:
    folder = tmp_path / "vectors"
    shutil.copytree(VECTORS, folder)
    (folder / "heartbeat.bin").unlink()
    (folder / "invalid" / "truncated.bin").unlink()
    (folder / "encodings" / "int8.bin").unlink()
    (folder / "stop.bin").write_bytes(b"changed")

    script().write(folder)

    assert (folder / "stop.bin").read_bytes() == b"changed"
    for name in ("heartbeat.bin", "invalid/truncated.bin", "encodings/int8.bin", "vectors.json"):
        assert (folder / name).read_bytes() == (VECTORS / name).read_bytes()
