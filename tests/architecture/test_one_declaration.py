"""Each setting is declared once: its default, bounds, unit and description stand in one section."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from source_measures.settings import Declarations
from source_measures.source import read
from unstale.coordinator.selectors import SELECTORS
from unstale.coordinator.triggers import TRIGGERS
from unstale.settings.learning import (
    PartitionSettings,
    ScheduleSettings,
    SelectorSettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.training.partition import PARTITIONS
from unstale.training.registry import TRAININGS
from unstale.training.schedule import SCHEDULES

ROOT = Path(__file__).parents[2]
PARTS: list[tuple[type[Any], dict[str, Any], set[str]]] = [
    (PartitionSettings, PARTITIONS, set()),
    (TrainingSettings, TRAININGS, set()),
    (ScheduleSettings, SCHEDULES, {"learning_rate", "rounds"}),
    (TriggerSettings, dict(TRIGGERS), set()),
    (SelectorSettings, dict(SELECTORS), {"clients", "availability"}),
]


def test_no_setting_is_declared_twice() -> None:
    sources = [source for folder in ("services", "proto", "client") for source in read(ROOT / folder, ROOT)]
    assert Declarations(sources).declared_twice() == {}


@pytest.mark.parametrize(("section", "parts", "context"), PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_part_keys_and_section_keys_are_the_same(section: type[Any], parts: dict[str, Any], context: set[str]) -> None:
    of_all_parts = {"name", "learning_rate", "schedule", "settings"} - context
    keys = {key for part in parts.values() for key in signature(part).parameters} - context
    assert keys == section.model_fields.keys() - of_all_parts


@pytest.mark.parametrize(("section", "parts", "context"), PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_default_of_one_part_names_a_part_with_the_key(
    section: type[Any], parts: dict[str, Any], context: set[str]
) -> None:
    for key, field in section.model_fields.items():
        null_is = (field.json_schema_extra or {}).get("null_is")
        if isinstance(null_is, dict):
            takers = {name for name, part in parts.items() if key in signature(part).parameters}
            assert (key, null_is.keys()) == (key, takers)
