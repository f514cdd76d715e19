"""Write the binary files of entries that were added to vectors.json and have none yet.

    .venv/bin/python proto/vectors/write.py

For an entry under `headers` with its `type` and `fields`, the header is encoded and its `sha256` noted. For
one under `accepted` or `invalid`, the bytes are those of its `hex`. A file that exists is never touched: a
changed byte is a changed contract, and whoever means that deletes the file by hand.
"""

import hashlib
import json
import sys
from pathlib import Path

from unstale_proto.codec import TYPES, encode


def write(folder: Path) -> None:
    """Write what is missing in a folder that is laid out as this one."""
    index_path = folder / "vectors.json"
    index = json.loads(index_path.read_text(encoding="utf-8"))
    files: dict[Path, bytes] = {}
    for name, entry in index["headers"].items():
        path = folder / f"{name}.bin"
        if not path.exists():
            files[path] = encode(TYPES[entry["type"]].model_validate_json(json.dumps(entry["fields"])))
            entry["sha256"] = hashlib.sha256(files[path]).hexdigest()
    for group in ("accepted", "invalid"):
        for name, entry in index[group].items():
            path = folder / group / f"{name}.bin"
            if not path.exists():
                files[path] = bytes.fromhex(entry["hex"])
    for path, content in files.items():
        with path.open("xb") as file:
            file.write(content)
        sys.stdout.write(f"wrote {path.relative_to(folder)}, {len(content)} bytes\n")
    index_path.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
