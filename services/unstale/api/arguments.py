"""Settings of a run, from the arguments of a function."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from unstale.config import Settings, load
from unstale.errors import UserError
from unstale.plugins import GROUPS, name_of
from unstale.training.app import App

PARTS = (*GROUPS, "data.variant")
"""Sections whose part may be an object in place of its name."""


def settings_of(app: App | str | None, arguments: Mapping[str, Any]) -> Settings:
    """The settings of a run.

    arguments: by key or section. A dotted key replaces the name of a section: `policy.name` the argument `policy`.
    Raises UserError.
    """
    if app is not None and not isinstance(app, App | str):
        raise UserError(f"app is of type {type(app).__name__}, expected an unstale.App, or its module:name")
    if "trackers" in arguments:
        arguments = {**arguments, "trackers": _trackers(arguments["trackers"])}
    named = {name: _named(name, value) for name, value in arguments.items() if f"{name}.name" not in arguments}
    settings = load(arguments={**named, "app": None if app is None else name_of("app", app)})
    if settings.run.durability == "off":
        raise UserError("run.durability is off, but the tables of a run are read from its journal; leave it out")
    return settings


def _trackers(chosen: Any) -> Any:
    """The trackers with names in place of objects. One tracker is a list, too."""
    if chosen is None or isinstance(chosen, str):
        return chosen
    return [_tracker(one) for one in (chosen if isinstance(chosen, list | tuple) else [chosen])]


def _tracker(chosen: Any) -> Any:
    if isinstance(chosen, Mapping):
        return {key: name_of("tracker", value) if key == "name" else value for key, value in chosen.items()}
    return name_of("tracker", chosen)


def _named(name: str, value: Any) -> Any:
    """The value with names in place of objects."""
    section = name.removesuffix(".name")
    if section not in PARTS or value is None or isinstance(value, str | PathLike | int | float):
        return value
    is_section = name == section and isinstance(value, Mapping) and not (section == "scenario" and "groups" in value)
    if is_section:
        return {below: _named(f"{section}.{below}", one) for below, one in value.items()}
    return name_of(section.partition(".")[0], value)
