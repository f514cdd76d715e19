"""Writes the configuration as YAML with comments, as resolved YAML, or as environment variables."""

from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from unstale.config.keys import KEYS, Key
from unstale.config.settings import Settings
from unstale.errors import UserError

_WIDTH = 100  # characters of a line of comment

_HEAD = """\
# Configuration of unstale: every key, with its default.
#
# Each key is also a variable, which overrides this file, and an option, which overrides both:
# training.learning_rate is UNSTALE_TRAINING__LEARNING_RATE and --training.learning-rate.
"""


def commented() -> str:
    """Return the text of a YAML file: every key at its default, with description, expected values and unit."""
    lines = _HEAD.splitlines()
    open_sections: list[str] = []
    for key in KEYS.values():
        *sections, last = key.name.split(".")
        for depth, section in enumerate(sections):
            if open_sections[: depth + 1] != sections[: depth + 1]:
                lines += [""] * (depth == 0) + [f"{'  ' * depth}{section}:"]
        lines += [""] * (not sections)
        open_sections = sections
        indent = "  " * len(sections)
        lines += [f"{indent}# {line}" for line in wrap(key.description, _WIDTH) + wrap(_expected(key), _WIDTH)]
        lines.append(f"{indent}{last}: {as_yaml(key.default)}")
    return "\n".join(lines) + "\n"


def _expected(key: Key) -> str:
    """Return a text such as `Expected: a number > 0 and <= 3600. Unit: s.`"""
    unit = f" Unit: {key.unit}." if key.unit else ""
    return f"Expected: {key.expected}.{unit}"


def as_yaml(value: Any) -> str:
    """Return a value as YAML, on one line unless a string has line breaks."""
    return yaml.safe_dump(value, default_flow_style=True, width=inf).removesuffix("...\n").strip()


def write_commented(file: Path, *, force: bool) -> None:
    """Write `commented()` to a file. Raises UserError if it fails, or the file exists without `force`."""
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(commented())
    except FileExistsError:
        raise UserError(f"{file} exists already; name another file, or add --force to overwrite it") from None
    except OSError as error:
        raise UserError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from None


def as_variables(settings: Settings) -> dict[str, str]:
    """Return the keys that were set explicitly, as environment variables that load to the same settings."""
    given = settings.model_dump(exclude_unset=True)
    variables = {}
    for key in KEYS.values():
        value: Any = given
        *sections, last = key.name.split(".")
        for section in sections:
            value = value.get(section, {})
        if last in value:
            variables[key.variable] = value[last] if isinstance(value[last], str) else as_yaml(value[last])
    return variables


def resolved(settings: Settings, *, only_ascii: bool = False) -> str:
    """Return all keys and values as YAML that loads to the same settings. only_ascii: escape other characters."""
    return yaml.safe_dump(settings.model_dump(), sort_keys=False, allow_unicode=not only_ascii)
