"""The trackers of a run: names, or mappings with name and settings."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from unstale.settings.values import Name, PlainSettings, Section

TRACKERS_MAX = 16


class TrackerSettings(Section):
    """A tracker and the settings that it takes."""

    name: Name
    settings: PlainSettings = Field(default_factory=dict)


_ADAPTER = TypeAdapter(list[TrackerSettings])
_EXPECTED = "a list of names, or of mappings with name and settings"


def _checked(value: Any) -> list[dict[str, Any]]:
    """Each tracker as a mapping. One name, or names with commas between them, are a list, too."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    items = [value] if isinstance(value, dict) else value or []
    try:
        trackers = _ADAPTER.validate_python([{"name": one} if isinstance(one, str) else one for one in items])
    except (TypeError, ValidationError):
        raise PydanticCustomError("trackers", f"not {_EXPECTED}") from None
    if len(trackers) > TRACKERS_MAX or len({tracker.name for tracker in trackers}) < len(trackers):
        raise PydanticCustomError("trackers", "too many, or one of them twice")
    return [tracker.model_dump() for tracker in trackers]


Trackers = Annotated[list[dict[str, Any]], BeforeValidator(_checked)]
EXPECTED = f"{_EXPECTED}, at most {TRACKERS_MAX} and each once"
