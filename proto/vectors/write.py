"""Write the missing binary files of the entries in vectors.json (PROTOCOL.md 11).

    .venv/bin/python proto/vectors/write.py

An entry under `headers` has `type` and `fields`; the script encodes the header and adds `sha256`. An entry under
`encodings` has `numbers`; the script encodes them and adds `decoded` and `sha256`. One under `checksums` has `bytes`;
the script adds `xxh3`. An entry under `accepted`, `invalid` or `malformed` has the bytes in `hex`. Existing files are
never overwritten: a changed byte is a changed contract. To change a vector, delete its file first.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from unstale_proto import encodings, transfer
from unstale_proto.codec import TYPES, encode
from unstale_proto.messages import EncodingPlan, Message

_DIGITS = re.compile(r"-?[1-9][0-9]{15,18}")


def message_of(entry: dict[str, Any]) -> Message:
    """Return the message of an entry under `headers`."""
    return TYPES[entry["type"]].model_validate_json(json.dumps(_with_integers(entry["fields"])))


def _with_integers(value: Any) -> Any:
    """Return the value with the integers that are strings in JSON, because JavaScript does not read them exactly."""
    if isinstance(value, dict):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_integers(inner) for inner in value]
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


def pattern(size: int) -> bytes:
    """Return the bytes of an entry under `checksums`."""
    return bytes((131 * index + index // 256) % 256 for index in range(size))


def encoding_of(entry: dict[str, Any]) -> encodings.Encoding:
    """Return the encoding of an entry under `encodings` or `malformed`."""
    behind = entry.get("behind", 0)
    dimension = entry["dimension"] if "dimension" in entry else len(entry["numbers"]) // 8 - behind  # 8 digits each
    plan = EncodingPlan(updates=entry["encoding"], models="float32", block=entry.get("block"), keep=entry.get("keep"))
    return encodings.of_updates(plan, dimension, behind)


def _encoded(entry: dict[str, Any]) -> tuple[bytes, str]:
    """Return the payload of an entry under `encodings`, and its decoded numbers in hex."""
    encoding, numbers = encoding_of(entry), bytes.fromhex(entry["numbers"])
    behind_at = 4 * encoding.dimension  # the numbers from here on are not encoded
    frames = encoding.frames([memoryview(part) for part in (numbers[:behind_at], numbers[behind_at:]) if part])
    return b"".join(frames), b"".join(map(bytes, encoding.decode(frames))).hex()


def write(folder: Path) -> None:
    """Write the missing files of a folder with a vectors.json, and the additions to vectors.json."""
    index_path = folder / "vectors.json"
    index = json.loads(index_path.read_text(encoding="utf-8"))
    files: dict[Path, bytes] = {}
    for name, entry in index["headers"].items():
        path = folder / f"{name}.bin"
        if not path.exists():
            files[path] = encode(message_of(entry))
            entry["sha256"] = hashlib.sha256(files[path]).hexdigest()
    for name, entry in index["encodings"].items():
        path = folder / "encodings" / f"{name}.bin"
        if not path.exists():
            files[path], entry["decoded"] = _encoded(entry)
            entry["sha256"] = hashlib.sha256(files[path]).hexdigest()
    for entry in index["checksums"]:
        entry.setdefault("xxh3", transfer.checksum([memoryview(pattern(entry["bytes"]))]))
    for group in ("accepted", "invalid", "malformed"):
        for name, entry in index[group].items():
            path = folder / group / f"{name}.bin"
            if not path.exists():
                files[path] = bytes.fromhex(entry["hex"])
    for path, content in files.items():
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
        sys.stdout.write(f"wrote {path.relative_to(folder)}, {len(content)} bytes\n")
    index_path.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
