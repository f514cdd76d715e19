"""Write proto/messages.json: messages, maps, reasons and limits of the wire contract, for programs.

    .venv/bin/python scripts/wire_schema.py

Names, types, ranges and defaults come from the code in unstale_proto; directions and meanings from PROTOCOL.md, whose
tables tests compare with the code. The settings in a plan are not in unstale_proto: they come from PROTOCOL.md alone.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from unstale_proto import limits, messages
from unstale_proto.codec import TYPES

PROTO = Path(__file__).resolve().parents[1] / "proto"
PAGE = PROTO / "messages.json"
DOCUMENT = (PROTO / "PROTOCOL.md").read_text(encoding="utf-8")
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}
MAPS: dict[str, type[BaseModel]] = {
    model.__name__: model
    for model in (
        messages.ProcessStart,
        messages.TensorSpec,
        messages.ModelPlan,
        messages.DataPlan,
        messages.VariantPlan,
        messages.PartitionPlan,
        messages.TrainingPlan,
        messages.ObjectivePlan,
        messages.EncodingPlan,
        messages.OwnEvaluation,
    )
}
DESCRIBED: dict[str, type[BaseModel]] = {**TYPES, **MAPS}
PAYLOADS = {"task": "the model", "update": "the vector", "chunk": "one frame"}
EXACT_MAX = 2**53 - 1
"""The greatest integer up to which JavaScript's numbers are exact."""

_RANGE = {
    "minimum": "minimum",
    "exclusiveMinimum": "above",
    "maximum": "maximum",
    "exclusiveMaximum": "under",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_items",
    "maxItems": "max_items",
    "maxProperties": "max_entries",
    "enum": "values",
}
_NAMES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "array", "object": "map"}
_SETTING = [
    {"type": "float"},
    {"type": "int", "minimum": -limits.INTEGER_MAX, "maximum": limits.INTEGER_MAX},
    {"type": "str", "max_length": limits.SETTING_TEXT_MAX},
]
_BOUND = re.compile(r"(over )?(-?[\w.]+)(?:,? to )(under )?(-?[\w.]+)( characters)?")

Row = dict[str, str]


def table(text: str) -> list[Row]:
    """The rows of the first table in a piece of the document, by the names of its columns."""
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert lines is not None
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].splitlines()]
    head, _, *body = rows
    assert all(len(row) == len(head) for row in body)
    return [dict(zip(head, row, strict=True)) for row in body]


def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def subsection(number: str) -> str:
    found = re.search(rf"^### {re.escape(number)} .*?(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def unquoted(cell: str) -> str:
    assert cell.startswith("`")
    return cell.strip("`")


def field_tables() -> dict[str, list[Row]]:
    """The rows of each field table of section 3, by the name of its message or map."""
    pieces = re.split(r"^#{3,4} (?:3\.\d+ )?`(\w+)`: ", section(3), flags=re.MULTILINE)
    return {name: table(text) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def titles() -> dict[str, str]:
    """Direction of each message and meaning of each map, from the headings of section 3."""
    return dict(re.findall(r"^#{3,4} (?:3\.\d+ )?`(\w+)`: (.*)$", section(3), flags=re.MULTILINE))


def exact(value: Any) -> Any:
    """The value with integers that JavaScript does not read exactly as strings."""
    if isinstance(value, dict):
        return {key: exact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [exact(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT_MAX:
        return str(value)
    return value


def _of_schema(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Type and range of a field from its JSON schema."""
    if "anyOf" in schema:
        (schema,) = [part for part in schema["anyOf"] if part.get("type") != "null"]
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {"type": "str", "values": "reasons"} if "enum" in definitions[name] else {"type": "map", "map": name}
    entry: dict[str, Any] = {"type": _NAMES[schema["type"]]}
    entry |= {ours: schema[theirs] for theirs, ours in _RANGE.items() if theirs in schema}
    if "const" in schema:
        entry["values"] = [schema["const"]]
    if entry["type"] == "array":
        entry["items"] = _of_schema(schema["items"], definitions)
    if entry["type"] == "map":
        ((pattern, inner),) = schema["patternProperties"].items()
        entry["keys"] = {"type": "str", "pattern": pattern}
        entry["entries"] = _of_schema(inner, definitions) if inner else {"any_of": _SETTING}
    return entry


def _of_text(row: Row) -> dict[str, Any]:
    """Type and range of a setting in a plan, from its row."""
    found = _BOUND.fullmatch(row["bound"])
    assert found is not None, row
    over, low, under, high, of_text = found.groups()
    if of_text:
        return {"type": "str", "min_length": _number(low), "max_length": _number(high)}
    return {
        "type": row["type"],
        "above" if over else "minimum": _number(low),
        "under" if under else "maximum": _number(high),
    }


def _number(text: str) -> Any:
    return LIMITS[text] if text in LIMITS else ast.literal_eval(text)


def _field(row: Row, schema: dict[str, Any] | None, definitions: dict[str, Any]) -> dict[str, Any]:
    entry = {"name": unquoted(row["field"])}
    entry |= _of_text(row) if schema is None else _of_schema(schema, definitions)
    if row["default"] == "required":
        entry["required"] = True
    elif row["default"] != "none":
        entry["default"] = ast.literal_eval(unquoted(row["default"]))
    return entry | {"meaning": row["meaning"]}


def _fields(name: str, rows: list[Row]) -> list[dict[str, Any]]:
    schema = DESCRIBED[name].model_json_schema()
    properties, definitions = schema["properties"], schema.get("$defs", {})
    return [_field(row, properties.get(unquoted(row["field"])), definitions) for row in rows]


def contract() -> dict[str, Any]:
    """The content of the page."""
    tables, headings = field_tables(), titles()
    return {
        "protocol": limits.PROTOCOL_VERSION,
        "messages": [
            {"name": name, "direction": headings[name], "payload": PAYLOADS.get(name), "fields": _fields(name, rows)}
            for name, rows in tables.items()
            if name in TYPES
        ],
        "maps": [
            {"name": name, "meaning": headings[name], "fields": _fields(name, rows)}
            for name, rows in tables.items()
            if name in MAPS
        ],
        "reasons": [{key: cell.strip("`") for key, cell in row.items()} for row in table(section(6))],
        "limits": [
            {"name": row["name"], "value": LIMITS[row["name"]], "meaning": row["why"]} for row in table(section(7))
        ],
    }


def page() -> str:
    """The whole page."""
    return json.dumps(exact(contract()), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
