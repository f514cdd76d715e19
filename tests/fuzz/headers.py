"""Almost valid headers: golden ones, with some of their fields changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from fuzz.choices import Choices

VECTORS = Path(__file__).parents[2] / "proto" / "vectors"
NAMES = (
    "hello_holding", "welcome_plans", "task_run", "update_evaluation", "ack_duplicate_rejected", "heartbeat_task",
    "bye_reason", "stop", "error_task", "welcome_labels", "update_gradient", "ack_accepted",
    "chunk", "credit_again", "task_announced", "update_announced",
)  # fmt: skip
"""A fixed list, so that a new vector does not change the meaning of the corpus."""

CHANGES_MAX = 4


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


GOLDEN = tuple(msgpack.unpackb((VECTORS / f"{name}.bin").read_bytes()) for name in NAMES)
ODD: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 64, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), True, False, None,
    float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 0.5, 1e300, 3.5e38,
    "", "x", "\x00", "x" * 128, "x" * 129, "x" * 1000, "x" * 1001, "x" * 4001, "\U0010ffff" * 1000, "0" * 32, "g" * 32,
    "0" * 64, "0" * 64 + "\n", "\udcff", b"", b"x", [], [[]], [0] * 65, [1] * 64, [0] * 2001, nested(14), nested(400),
    {}, {"x": 1}, {1: 2}, {f"x{index}": 0 for index in range(65)}, msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 2),
)  # fmt: skip
WELL_MADE = tuple({(type(leaf), leaf): leaf for fields in GOLDEN for leaf in leaves(fields)}.values())
VALUES = (*ODD, *WELL_MADE)  # valid values of one field are tried in every other


def golden(choices: Choices) -> dict[str, Any]:
    """The fields of a golden header, not to be written to."""
    return choices.of(GOLDEN)


def changed(fields: dict[str, Any], choices: Choices) -> bytes:
    """A header with these fields but for some changes. fields: not written to."""
    changes = choices.number(CHANGES_MAX + 1)
    if changes:
        fields = copied(fields)
    for _ in range(changes):
        change(fields, choices)
    return packed(fields)


def damaged(header: bytes, choices: Choices) -> bytes:
    """Remove a part, insert bytes, or repeat a part many times."""
    start, length = choices.number(len(header) + 1), choices.number(64)
    part = header[start : start + length] * choices.of((0, 0, 1, 2, 100, 2000))
    return header[:start] + choices.taken(choices.number(8)) + part + header[start + length :]


def packed(fields: dict[str, Any]) -> bytes:
    """Pack fields, also text of lone surrogates, which is not Unicode."""
    header: bytes = msgpack.packb(fields, unicode_errors="surrogateescape")
    return header


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def change(container: Any, choices: Choices) -> None:
    """Replace, remove or add one entry of a map or an array, also of a nested one."""
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    if not keys:
        return
    key = choices.of(keys)
    inner = container[key]
    if isinstance(inner, dict | list) and choices.number(4):
        change(inner, choices)
        return
    match choices.number(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[choices.of(VALUES[len(ODD) :])] = inner
        case 2:
            container[key] = choices.taken(choices.number(12)).decode(errors="surrogateescape")
        case 3:
            container[key] = choices.number(2**64)
        case 4:
            container[key] = [inner]
        case 5 if isinstance(container, dict):
            container[f"x{choices.number(256)}"] = copied(choices.of(VALUES))
        case _:
            container[key] = copied(choices.of(VALUES))
