"""The `run_config` of an app of Flower: a table of its pyproject.toml, with other values of a command line."""

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unstale.errors import UserError, unknown_name

Config = dict[str, bool | float | int | str]

_PAIR = re.compile(r"""(\S+?)\s*=\s*('[^']*'|"[^"]*"|\S+)""")  # as `flwr run --run-config`


def of_app(module: str, overrides: str | None) -> Config:
    """The table `tool.flwr.app.config` of the app, flattened with dots, with overrides such as `lr=0.1 epochs=2`.

    module: of the app. Raises UserError.
    """
    config = flattened(_table(module))
    for name, value in _parsed(overrides or "").items():
        if name not in config:
            raise unknown_name("flower.run_config: key", name, sorted(config))
        if not isinstance(value, type(config[name])) and not (
            isinstance(config[name], float) and type(value) is int  # as Flower: 1 for 1.0
        ):
            raise UserError(
                f"flower.run_config: {name} is {value!r}, expected {type(config[name]).__name__} as in pyproject.toml"
            )
        config[name] = type(config[name])(value)
    return config


def flattened(table: Mapping[str, Any], prefix: str = "") -> Config:
    """A table with the names of inner tables before those of their keys, joined by dots."""
    flat: Config = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _parsed(text: str) -> Config:
    """Raises UserError for a text that is not made of pairs NAME=VALUE."""
    pairs = [f"{name} = {value}" for name, value in _PAIR.findall(text)]
    try:
        if _PAIR.sub("", text).strip():
            raise ValueError(text)
        return flattened(tomllib.loads("\n".join(pairs)))
    except ValueError:
        raise UserError(
            f"flower.run_config is {text!r}, expected pairs such as local-epochs=2 name='text', separated by spaces"
        ) from None


def _table(module: str) -> Mapping[str, Any]:
    """The table in the nearest pyproject.toml of an app of Flower above a module; empty without one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    for folder in () if file is None else Path(file).resolve().parents:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            project = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{str(path)!r} cannot be read ({error}), expected TOML") from None
        app = project.get("tool", {}).get("flwr", {}).get("app")
        if app is not None:
            table: Mapping[str, Any] = app.get("config", {})
            return table
    return {}
