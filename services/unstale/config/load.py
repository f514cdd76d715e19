"""Reads the configuration: file, variables, options and arguments, each of which may set every key; later ones win."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from unstale.config.keys import (
    KEYS,
    KEYS_AT_THE_TOP,
    OPEN_SECTIONS,
    PREFIX,
    SECTIONS,
    flat,
    holds_settings,
    open_section,
)
from unstale.config.loader import Loader
from unstale.config.settings import Settings
from unstale.errors import UserError, nearest

FILE_VARIABLE = "UNSTALE_CONFIG"
"""The variable that names the file; the only `UNSTALE_` variable that is no key."""

_OF_KUBERNETES = re.compile(
    r"UNSTALE_([A-Z0-9]+_)*"
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9]+)*|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)=.*"
    r"|UNSTALE_([A-Z0-9]+_)*PORT=(tcp|udp|sctp)://.*",
    re.DOTALL,
)
"""`NAME=VALUE` of the variables that Kubernetes gives a container for every Service called `unstale` or `unstale-...`.

Source: Kubernetes documentation, https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""

SHOWN_MAX = 80  # characters of a wrong value that an error repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value of a key. origin: a line of a file, a variable, an option or an argument, for people."""

    value: Any
    origin: str


def load(
    file: Path | None = None,
    variables: Mapping[str, str] | None = None,
    options: Mapping[str, Given] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the sources and validate the result. In texts `null` is null, and a mapping is YAML.

    Args:
        file: YAML file.
        variables: The environment. Names without `UNSTALE_` are ignored, and those that Kubernetes sets for a Service.
        options: Texts by key; they win over variables, and variables over the file.
        arguments: Values of Python, which win over all. A section has a mapping, or the name of its part.

    Raises:
        UserError: The first error in the sources.
    """
    given = _from_file(file) if file else {}
    given |= _from_texts(_by_key(variables or {}))
    given |= _from_texts(options or {})
    given |= _from_arguments(arguments or {})
    try:
        return Settings(**_nested(given))
    except ValidationError as error:
        raise _first_mistake(error, given) from None


def _nested(given: Mapping[str, Given]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, item in given.items():
        sections, _, last = name.rpartition(".")
        inside = open_section(name)
        if inside is not None:  # the rest may contain dots
            sections, last = inside, name.removeprefix(f"{inside}.")
        below = nested
        for section in filter(None, sections.split(".")):
            below = below.setdefault(section, {})
        below[last] = item.value
    return nested


def _unknown_key(origin: str, name: str) -> UserError:
    if name in SECTIONS:
        example = next(key for key in KEYS if key.startswith(f"{name}."))
        return UserError(f"{origin}: {name} is a group of keys, expected one of them, such as {example}")
    known = [*KEYS, *SECTIONS]
    section, _, last = name.rpartition(".")
    siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
    if section and siblings:
        return UserError(f"{origin}: unknown key {last!r} in {section}{nearest(last, siblings)}")
    is_close = get_close_matches(name, known)
    return UserError(f"{origin}: unknown key {name!r}{nearest(name, known if is_close else KEYS_AT_THE_TOP)}")


def _is_key(name: str) -> bool:
    return name in KEYS or open_section(name) is not None


def _first_mistake(error: ValidationError, given: Mapping[str, Given]) -> UserError:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    while name not in KEYS and "." in name:  # the alternative of a union that failed may follow the key
        name = name.rpartition(".")[0]
    origins = [item.origin for key, item in given.items() if key == name]
    if first["type"] == "sentence":  # several keys do not fit together
        return UserError(first["msg"])
    if first["type"] == "setting":
        return UserError(f"{name}.{first['msg']}")
    where = "".join(f"{origin}: " for origin in origins)
    return UserError(f"{where}{name} is {shown(first['input'])}, expected {KEYS[name].expected}")


def shown(value: Any) -> str:
    """A value in an error message: `null`, `true`, a quoted text, a number. Long ones are cut."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


# --- variables and options ---


def _from_yaml(text: str) -> Any:
    """The YAML value of a text; the text itself if it is no YAML."""
    try:
        return yaml.load(text, Loader)  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _by_key(variables: Mapping[str, str]) -> dict[str, Given]:
    texts = {}
    for name, text in variables.items():
        is_ours = name.startswith(PREFIX) and not _OF_KUBERNETES.fullmatch(f"{name}={text}")
        if is_ours and name != FILE_VARIABLE:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            texts[key] = Given(value=text, origin=name)
    return texts


def _from_texts(texts: Mapping[str, Given]) -> dict[str, Given]:
    texts = {flat(key): item for key, item in texts.items()}
    for key, item in texts.items():
        if not _is_key(key):
            raise _unknown_key(item.origin, key)
    given: dict[str, Given] = {}
    # First the mappings, so that policy.settings.alpha wins over policy.settings.
    for key, item in sorted(texts.items(), key=lambda entry: (entry[0] not in OPEN_SECTIONS, entry[0])):
        is_open = key in OPEN_SECTIONS
        is_yaml = is_open or key not in KEYS or KEYS[key].kind is list
        value = _from_yaml(item.value) if is_yaml else _plain(item.value)
        if not is_open:
            given[key] = Given(value=value, origin=item.origin)
        elif isinstance(value, dict):  # its keys are merged one by one, too
            given |= {flat(f"{key}.{below}"): Given(value=one, origin=item.origin) for below, one in value.items()}
        else:
            raise UserError(f"{item.origin}: {key} is {shown(value)}, expected a mapping of keys")
    return given


def _plain(text: str) -> str | None:
    """The value of a text for a key without a mapping; pydantic parses numbers and booleans."""
    return None if text == "null" else text


# --- arguments of a function ---


def _from_arguments(arguments: Mapping[str, Any]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for argument, value in arguments.items():
        for key, item in _of_argument(flat(argument), value, f"argument {argument}"):
            if key in given:
                raise UserError(f"{item.origin}: {key} is given by {given[key].origin} too; leave one of them out")
            given[key] = item
    return given


def _of_argument(name: str, value: Any, origin: str) -> Iterator[tuple[str, Given]]:
    """Every key of a value: of a mapping for a section all keys below it."""
    prefix = _prefix(name)
    if prefix is None:
        if not _is_key(name):
            raise _unknown_key(origin, name)
        yield name, Given(value=_builtin(value), origin=origin)
    elif isinstance(value, Mapping):
        for below, one in value.items():
            yield from _of_argument(flat(f"{prefix}{below}"), one, origin)
    elif f"{name}.name" in KEYS:
        yield f"{name}.name", Given(value=_builtin(value), origin=origin)
    else:
        raise UserError(f"{origin}: {name} is {shown(value)}, expected a mapping of keys")


def _builtin(value: Any) -> Any:
    """A value without the types of paths and of NumPy."""
    if isinstance(value, PathLike):
        return fspath(value)
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


# --- the file ---


def _from_file(file: Path) -> dict[str, Given]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {file}: it is not UTF-8 text, expected YAML") from None
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        if root is None:  # nothing, or comments only
            return {}
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{_origin(file, root)}: expected keys and values like `rounds: 200`")
        return dict(_entries(loader, file, root, "", set()))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{file}{line}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file}: this is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{file}: mappings lie too deep in one another") from None


def _origin(file: Path, node: yaml.Node) -> str:
    return f"{file}, line {node.start_mark.line + 1}"


def _entries(
    loader: Loader, file: Path, mapping: yaml.MappingNode, above: str, seen: set[str]
) -> Iterator[tuple[str, Given]]:
    """Every key of a mapping and of the sections below it, with its line. seen: names so far."""
    for key_node, value_node in mapping.value:
        origin = _origin(file, key_node)
        name = _new_name(key_node, above, origin, seen)
        prefix = _prefix(name)
        if prefix is None:
            if not _is_key(name):
                raise _unknown_key(origin, name)
            yield name, Given(value=_value(loader, value_node, origin), origin=origin)
        elif isinstance(value_node, yaml.MappingNode):
            yield from _entries(loader, file, value_node, prefix, seen)
        elif (value := _value(loader, value_node, origin)) is not None:  # null: all its keys are commented out
            raise UserError(f"{origin}: {name} is {shown(value)}, expected a mapping of keys")


def _new_name(node: yaml.Node, above: str, origin: str, seen: set[str]) -> str:
    """The full name of a key; adds it to `seen`."""
    if not isinstance(node, yaml.ScalarNode):
        raise UserError(f"{origin}: expected a key, which is one word")
    name = flat(f"{above}{node.value}")
    if name in seen:
        raise UserError(f"{origin}: key {name!r} is given twice, expected once")
    seen.add(name)
    return name


def _prefix(name: str) -> str | None:
    """The prefix of the keys of a group: `training.` for `training`."""
    is_group = name in SECTIONS or name in OPEN_SECTIONS or holds_settings(name.removesuffix(".settings"))
    return f"{name}." if is_group else None


def _value(loader: Loader, node: yaml.Node, where: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # such as an impossible date
        raise UserError(f"{where}: this is not YAML: {error}") from None
