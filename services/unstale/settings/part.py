"""A part of a run that is chosen by its name, such as a partition, made from its section of the settings.

The section declares the keys of all parts of its kind. A part names the keys that it takes as parameters, without
default or bounds. A key whose default is null may have another default for each part: `null_is` of its declaration.
"""

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from unstale.errors import UserError, unknown_name
from unstale.settings.values import Section

Part = TypeVar("Part")

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def part(
    section: Section, path: str, parts: Mapping[str, type[Part]], *, shared: Collection[str] = (), **context: Any
) -> Part:
    """The part that a section chooses among these. Other arguments as of `made`.

    Raises:
        UserError: unknown name, or as `made`.
    """
    name = name_of(section)
    if name not in parts:
        raise unknown_name(_kind(path), name, parts)
    return made(parts[name], section, path, shared=shared, **context)


def made(
    factory: Callable[..., Part],
    section: Section,
    path: str,
    *,
    shared: Collection[str] = (),
    own: Mapping[str, Any] = NO_SETTINGS,
    **context: Any,
) -> Part:
    """The part that a section chooses, from its class or another factory.

    Args:
        factory: its parameters are keys of the section.
        section: with the key `name`.
        path: of the section, such as `training.schedule`; its last word names the kind of part.
        shared: keys of the section that no part takes.
        own: settings that the section has no keys for.
        context: values from elsewhere, for the parts that take them.

    Raises:
        UserError: a key that the part does not take, or one that it needs and that is null.
    """
    kind, name = _kind(path), name_of(section)
    parameters = signature(factory).parameters
    values = {key: value for key, value in context.items() if key in parameters} | dict(own)
    for key in _keys(section):
        if key in parameters:
            value, parameter = value_of(section, key), parameters[key]
            if value is not None or _takes_null(parameter):
                values[key] = value
            elif parameter.default in (Parameter.empty, None):  # a dataclass has the default of its base
                raise UserError(f"{kind} {name!r} needs {path}.{key}, and none was given")
        elif key not in shared and _is_chosen(section, key):
            value = getattr(section, key)
            raise UserError(f"{kind} {name!r} takes no {path}.{key}, got {value}; leave it out")
    return factory(**values)


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


def _takes_null(parameter: Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):  # of a module with `from __future__ import annotations`
        return "None" in annotation
    return type(None) in get_args(annotation)


def _keys(section: Section) -> list[str]:
    """The keys of a section but for its name, the settings of plug-ins, and the sections below it."""
    return [key for key, value in section if key not in ("name", "settings") and not isinstance(value, Section)]


def _is_chosen(section: Section, key: str) -> bool:
    """Whether a key has another value than its default, which `config show` prints for every part."""
    return getattr(section, key) not in (None, type(section).model_fields[key].default)


def takes(factory: Callable[..., Any], key: str) -> bool:
    """Whether a class or another factory of a part takes a key."""
    return key in signature(factory).parameters


def name_of(section: Section) -> str:
    """The name of the part that a section chooses."""
    name: str = vars(section)["name"]
    return name


def value_of(section: Section, key: str) -> Any:
    """The value of a key; where it is null, its default for the part that the section chooses."""
    value = getattr(section, key)
    if value is not None:
        return value
    default = _null_is(type(section).model_fields[key])
    return default.get(name_of(section)) if isinstance(default, dict) else default


def description(field: FieldInfo) -> str:
    """The meaning of a key, with the values that null stands for."""
    default, text = _null_is(field), field.description or ""
    if default is None:
        return text
    by_part = default.items() if isinstance(default, dict) else [("", default)]
    values = [f"{value:g} ({name})" if name else f"{value:g}" for name, value in by_part]
    return f"{text.removesuffix('.')}; null for {' or '.join(values)}."


def _null_is(field: FieldInfo) -> Any:
    """The default of a key that is null: a value, or values by the name of the part."""
    extra = field.json_schema_extra
    return extra.get("null_is") if isinstance(extra, dict) else None
