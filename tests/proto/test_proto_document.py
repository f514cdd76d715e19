"""PROTOCOL.md equals the code: every message, field, default, bound, reason, limit and example."""

import ast
import re
from typing import Any

import pytest

from unstale.config.server import ServerSettings
from unstale.settings.learning import PartitionSettings, TrainingSettings
from unstale_client.client import LINGER_S
from unstale_client.loop import AWAY_S
from unstale_client.net import sockets
from unstale_client.session import GREETING_S
from unstale_proto import messages, signature
from unstale_proto.codec import encode
from unstale_proto.errors import Reason
from wire_schema import DESCRIBED, DOCUMENT, LIMITS, field_tables, section, table, unquoted

# Their fields are settings, which the product declares.
PLANS = {"PartitionPlan": PartitionSettings, "TrainingPlan": TrainingSettings}
TYPED = [name for name in DESCRIBED if name not in PLANS]

# The table names the other field, whose bound is the tighter one.
BOUNDED_BY_A_SIBLING = {("welcome", "client_id"), ("welcome", "lease_s")}

FIELD_TABLES = field_tables()


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


@pytest.mark.parametrize(
    ("sentence", "time_s", "expected_s"),
    [
        ("repeats `hello` every 5 s", GREETING_S, 5),
        ("joins again (4.1) after 5 s", GREETING_S, 5),
        ("with a linger of 2 s", LINGER_S, 2),
        ("for at most `server.linger_s` (2 s unless set otherwise", ServerSettings().linger_s, 2),
        ("and 5 s more if it was started after the end of the run", sockets.RECONNECT_S_MAX, 5),
        ("sends no `hello` within 15 s", ServerSettings().hello_s, 15),
        ("every 10 s. So does one without a monitor", AWAY_S, 10),
    ],
)
def test_the_times_of_the_document_are_those_of_the_code(sentence: str, time_s: float, expected_s: float) -> None:
    assert sentence in re.sub(r"\s+", " ", DOCUMENT)
    assert time_s == expected_s


def test_the_levels_of_the_document_name_fields_of_the_messages() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", section(0), re.MULTILINE)
    assert [name for name, _, _ in rows] == ["welcome", "task", "ack", "heartbeat", "stop", "error"]
    for name, used, ignored in rows:
        fields = DESCRIBED[name].model_fields
        named_fields = re.findall(r"`([\w.]+)`", used + re.split(r"[;:,] (?:if|it|they) ", ignored)[0])
        assert named_fields and {field.partition(".")[0] for field in named_fields} <= set(fields), name


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
