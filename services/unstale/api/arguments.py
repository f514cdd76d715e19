"""Settings of a run, from the arguments of a function."""

import sys
from collections.abc import Mapping
from typing import Any

from unstale.config import Settings, load
from unstale.errors import UserError
from unstale.training.app import App

PARTS = (
    *("compensator", "data", "model", "objective", "partition", "policy", "scenario", "selector", "training"),
    "trigger",
)
"""Sections whose part may be an object in place of its name."""


def settings_of(app: App | str | None, arguments: Mapping[str, Any]) -> tuple[Settings, App | None]:
    """The settings of a run, and its app if it is an object.

    arguments: by key or section. A dotted key replaces the name of a section: `policy.name` the argument `policy`.
    Raises UserError.
    """
    if app is not None and not isinstance(app, App | str):
        raise UserError(f"app is of type {type(app).__name__}, expected an unstale.App, or its module:name")
    made = app if isinstance(app, App) else None
    named = {name: _named(name, value) for name, value in arguments.items() if f"{name}.name" not in arguments}
    settings = load(arguments={**named, "app": app if made is None else _name_of_app(made)})
    if settings.run.durability == "off":
        raise UserError("run.durability is off, but the tables of a run are read from its journal; leave it out")
    return settings, made


def _named(name: str, value: Any) -> Any:
    """The value with names in place of objects."""
    section = name.removesuffix(".name")
    if section not in PARTS:
        return value
    if isinstance(value, Mapping) and name == section:
        return {below: _named(f"{section}.{below}", one) for below, one in value.items()}
    return value if value is None else name_of(section, value)


def name_of(kind: str, thing: object) -> str:
    """The name of a part. Raises UserError."""
    if isinstance(thing, str):
        return thing
    raise UserError(f"{kind} is of type {type(thing).__name__}, expected a name")


def _name_of_app(app: App) -> str:
    """`module:name` of an app, under which other processes may import it."""
    module = getattr(app.train, "__module__", None) or "__main__"
    names = [name for name, value in vars(sys.modules.get(module, sys)).items() if value is app]
    return f"{module}:{names[0] if names else 'app'}"
