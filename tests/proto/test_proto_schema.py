"""messages.json is up to date, and with nothing else a reader accepts and refuses the same headers as the codec."""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

import wire_schema
from unstale_proto.errors import Reason
from unstale_proto.limits import INTEGER_MAX

VECTORS = wire_schema.PROTO / "vectors"
INDEX: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text(encoding="utf-8"))
CONTRACT: dict[str, Any] = json.loads(wire_schema.PAGE.read_text(encoding="utf-8"))
FIELDS = {each["name"]: each["fields"] for each in CONTRACT["messages"] + CONTRACT["maps"]}
REASONS = [each["reason"] for each in CONTRACT["reasons"]]

# Between two fields of a message: not in the schema of one.
BETWEEN_FIELDS = {
    "ack_accepted_with_reason", "ack_rejected_without_reason", "ack_outcomes_differ",
    "welcome_client_id_too_large", "welcome_lease_too_short", "credit_until_behind_have",
    "welcome_int8_without_block", "welcome_block_for_nothing",
    "welcome_top_k_without_keep", "welcome_keep_too_large", "welcome_keep_for_nothing",
}  # fmt: skip

# Values that no field may have, in a field that is not in the schema.
IN_UNKNOWN_FIELDS = {"binary_value", "extension_value"}


def number(bound: Any) -> Any:
    return int(bound) if isinstance(bound, str) else bound


def is_in_range(value: float, field: dict[str, Any]) -> bool:
    return (
        value >= number(field.get("minimum", value))
        and value <= number(field.get("maximum", value))
        and ("above" not in field or value > field["above"])
        and ("under" not in field or value < field["under"])
        and value % field.get("multiple_of", 1) in (0, value % 1)
    )


def is_text(value: Any, field: dict[str, Any]) -> bool:
    values = REASONS if field.get("values") == "reasons" else field.get("values")
    return (
        isinstance(value, str)
        and field.get("min_length", 0) <= len(value) <= field.get("max_length", math.inf)
        and ("pattern" not in field or re.fullmatch(field["pattern"].strip("^$"), value) is not None)
        and (values is None or value in values)
    )


def is_map(value: Any, field: dict[str, Any]) -> bool:
    if "map" in field:
        return isinstance(value, dict) and fits(value, FIELDS[field["map"]])
    return (
        isinstance(value, dict)
        and len(value) <= field["max_entries"]
        and all(is_text(key, field["keys"]) and is_valid(inner, field["entries"]) for key, inner in value.items())
    )


def is_valid(value: Any, field: dict[str, Any]) -> bool:
    if "any_of" in field:
        return any(is_valid(value, each) for each in field["any_of"])
    match field["type"]:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return type(value) is int and is_in_range(value, field)
        case "float":
            return type(value) in (int, float) and math.isfinite(value) and is_in_range(value, field)
        case "str":
            return is_text(value, field)
        case "array":
            return (
                isinstance(value, list)
                and field.get("min_items", 0) <= len(value) <= field.get("max_items", math.inf)
                and all(is_valid(each, field["items"]) for each in value)
            )
        case _:
            return is_map(value, field)


def fits(values: dict[str, Any], fields: list[dict[str, Any]]) -> bool:
    """Whether the values of a message or map are valid. Unknown fields are ignored."""
    for field in fields:
        value = values.get(field["name"])
        if value is None and ("required" in field or ("default" in field and field["name"] in values)):
            return False
        if value is not None and not is_valid(value, field):
            return False
    return True


def is_accepted(header: bytes) -> bool:
    values = msgpack.unpackb(header)
    return isinstance(values.get("type"), str) and values["type"] in FIELDS and fits(values, FIELDS[values["type"]])


def test_the_file_is_up_to_date() -> None:
    assert wire_schema.PAGE.read_text(encoding="utf-8") == wire_schema.page(), "run python scripts/wire_schema.py"


@pytest.mark.parametrize("name", INDEX["headers"])
def test_a_golden_header_is_valid(name: str) -> None:
    assert is_accepted((VECTORS / f"{name}.bin").read_bytes())


@pytest.mark.parametrize("name", INDEX["accepted"])
def test_another_spelling_of_a_header_is_valid(name: str) -> None:
    assert is_accepted((VECTORS / "accepted" / f"{name}.bin").read_bytes())


def of_a_field(name: str) -> bool:
    """Whether an invalid header is well-formed, and refused because of the value of one field."""
    try:
        values = msgpack.unpackb(bytes.fromhex(INDEX["invalid"][name]["hex"]), max_map_len=64, max_array_len=2000)
    except ValueError:
        return False
    return isinstance(values, dict) and values.get("type") in FIELDS and type(values.get("protocol")) is int


@pytest.mark.parametrize("name", [name for name in INDEX["invalid"] if of_a_field(name)])
def test_a_header_that_is_refused_because_of_a_field_is_invalid(name: str) -> None:
    assert INDEX["invalid"][name]["reason"] == Reason.MALFORMED_HEADER
    valid = is_accepted((VECTORS / "invalid" / f"{name}.bin").read_bytes())
    assert valid == (name in BETWEEN_FIELDS | IN_UNKNOWN_FIELDS)


def integers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [each for inner in value.values() for each in integers(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in integers(inner)]
    return [value] if type(value) is int else []


@pytest.mark.parametrize("file", [wire_schema.PAGE, *sorted(VECTORS.rglob("*.json"))], ids=lambda path: path.name)
def test_every_integer_in_json_is_exact_in_javascript(file: Path) -> None:
    found = integers(json.loads(file.read_text(encoding="utf-8")))
    assert all(abs(each) <= wire_schema.EXACT_MAX for each in found)


def test_a_64_bit_limit_is_a_string_of_its_digits() -> None:
    assert {each["name"]: each["value"] for each in CONTRACT["limits"]}["INTEGER_MAX"] == str(INTEGER_MAX)
