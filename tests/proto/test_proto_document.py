"""PROTOCOL.md equals the code: every message, field, default, bound, reason, limit and example."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from unstale.settings.learning import PartitionSettings, TrainingSettings
from unstale_proto import limits, messages, signature
from unstale_proto.codec import TYPES, encode
from unstale_proto.errors import Reason

DOCUMENT = (Path(__file__).parents[2] / "proto" / "PROTOCOL.md").read_text()
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}
NESTED = {
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
DESCRIBED: dict[str, type[BaseModel]] = {**TYPES, **NESTED}
# Their fields are settings, which the product declares.
PLANS = {"PartitionPlan": PartitionSettings, "TrainingPlan": TrainingSettings}
TYPED = [name for name in DESCRIBED if name not in PLANS]

# The table names the other field, whose bound is the tighter one.
BOUNDED_BY_A_SIBLING = {("welcome", "client_id"), ("welcome", "lease_s")}

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


def field_tables() -> dict[str, list[Row]]:
    """The rows of each field table of section 3, by the name of its message or map."""
    pieces = re.split(r"^#{3,4} (?:3\.\d+ )?`(\w+)`: ", section(3), flags=re.MULTILINE)
    return {name: table(text) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


FIELD_TABLES = field_tables()


def unquoted(cell: str) -> str:
    assert cell.startswith("`")
    return cell.strip("`")


def bounds(schema: dict[str, Any]) -> list[Any]:
    """Every bound and every allowed text in a field's JSON schema."""
    lower = ("minimum", "exclusiveMinimum", "minLength", "minItems", "multipleOf")
    upper = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "const")
    found: list[Any] = [schema[key] for key in lower + upper if key in schema]
    found += schema.get("enum", [])
    inner = [schema["items"]] if "items" in schema else []
    for part in inner + schema.get("anyOf", []):
        found += bounds(part)
    return found


def named(cell: str) -> list[Any]:
    """Every number, limit and quoted text that a cell names."""
    found: list[Any] = re.findall(r"`([\w-]+)`", cell)
    for sign, word in re.findall(r"(-?)\b([A-Z][A-Z_]+|\d+(?:\.\d+)?)\b", cell):
        value = LIMITS[word] if word.isupper() else float(word)
        found.append(-value if sign else value)
    return found


def test_the_document_describes_exactly_the_existing_messages() -> None:
    assert list(FIELD_TABLES) == list(DESCRIBED)


@pytest.mark.parametrize("name", TYPED)
def test_a_table_names_exactly_the_fields_in_their_order(name: str) -> None:
    assert [unquoted(row["field"]) for row in FIELD_TABLES[name]] == list(DESCRIBED[name].model_fields)


@pytest.mark.parametrize("name", TYPED)
def test_a_table_marks_required_fields_and_gives_the_other_defaults(name: str) -> None:
    for row in FIELD_TABLES[name]:
        info = DESCRIBED[name].model_fields[unquoted(row["field"])]
        if info.is_required():
            assert row["default"] == "required"
        elif info.default is None:
            assert row["default"] == "none"
        else:
            default = ast.literal_eval(unquoted(row["default"]))
            assert (tuple(default) if isinstance(default, list) else default) == info.default


@pytest.mark.parametrize("name", TYPED)
def test_a_table_names_every_bound_and_every_allowed_text(name: str) -> None:
    properties = DESCRIBED[name].model_json_schema()["properties"]
    for row in FIELD_TABLES[name]:
        field = unquoted(row["field"])
        expected = [] if (name, field) in BOUNDED_BY_A_SIBLING else bounds(properties[field])
        for bound in expected:
            assert bound in named(row["bound"] or row["type"]), (field, bound)


@pytest.mark.parametrize("name", PLANS)
def test_the_table_of_a_plan_names_every_setting_of_its_section_with_its_bounds(name: str) -> None:
    of_the_server = {"learning_rate", "schedule", "settings"}  # the plan has the settings themselves
    properties = PLANS[name].model_json_schema()["properties"]
    rows = {unquoted(row["field"]): row for row in FIELD_TABLES[name]}
    assert list(rows) == [key for key in properties if key not in of_the_server]
    for key, row in rows.items():
        assert all(bound in named(row["bound"]) for bound in bounds(properties[key])), key
    always = DESCRIBED[name](name="x").settings  # type: ignore[attr-defined]
    defaults = {key: row["default"] for key, row in rows.items() if row["default"] not in ("none", "required")}
    assert defaults == {key: f"`{value}`" for key, value in always.items()}


def test_the_document_names_every_reason() -> None:
    assert {unquoted(row["reason"]) for row in table(section(6))} == set(Reason)


def test_the_document_names_every_limit_and_its_value() -> None:
    assert {row["name"]: ast.literal_eval(row["value"]) for row in table(section(7))} == LIMITS


def test_the_document_explains_every_reason_to_stop() -> None:
    reasons = messages.Stop.model_json_schema()["properties"]["reason"]["enum"]
    assert [unquoted(row["`reason`"]) for row in table(section(4))] == reasons


def test_the_document_explains_every_kind_of_payload() -> None:
    kinds = messages.Update.model_json_schema()["properties"]["kind"]["enum"]
    assert [unquoted(row["`kind`"]) for row in table(section(9))] == kinds


def test_the_example_of_a_signature_is_correct() -> None:
    tensors = [
        messages.TensorSpec(name="weight", shape=(2, 3), dtype="float32"),
        messages.TensorSpec(name="bias", shape=(2,), dtype="float32"),
    ]
    written = re.sub(r"\s", "", section(8))
    assert b"".join(map(signature.canonical_bytes, tensors)).hex() in written
    assert f"signature{signature.digest(tensors)}" in written


def test_the_example_of_a_header_is_correct() -> None:
    assert encode(messages.Heartbeat(number=4, version=41)).hex() in re.sub(r"\s", "", section(11))
