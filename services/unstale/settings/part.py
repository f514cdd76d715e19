"""A part of a run that is chosen by its name, such as a partition, made from its section of the settings.

The section declares the keys of all parts of its kind. A part names the keys that it takes as parameters, without
default or bounds. A key whose default is null may have another default for each part: `null_is` of its declaration.
"""

from collections.abc import Collection, Iterator, Mapping
from inspect import signature
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from unstale.errors import UserError, unknown_name
from unstale.settings.values import Section

Part = TypeVar("Part")


def part(
    section: Section,
    path: str,
    parts: Mapping[str, type[Part]],
    *,
    shared: Collection[str] = (),
    **context: Any,
) -> Part:
    """The part that a section chooses.

    Args:
        section: with the key `name`.
        path: of the section, such as `training.schedule`; its last word names the kind of part.
        parts: by name.
        shared: keys of the section that no part takes.
        context: values from elsewhere, for the parts that take them.

    Raises:
        UserError: unknown name, a key that the part does not take, or one that it needs and that is null.
    """
    kind, name = path.rpartition(".")[2], getattr(section, "name")  # noqa: B009  (a section of any kind)
    if name not in parts:
        raise unknown_name(kind, name, parts)
    parameters = signature(parts[name]).parameters
    values = {key: value for key, value in context.items() if key in parameters}
    for key, value, field in _keys(section, {"name", *shared}):
        if key in parameters:
            values[key] = _null_is(field, name) if value is None else value
            if values[key] is None and type(None) not in get_args(parameters[key].annotation):
                raise UserError(f"{kind} {name!r} needs {path}.{key}, and none was given")
        elif value not in (
            None,
            field.default,
        ):  # the default of a key that the part does not take was not given
            raise UserError(f"{kind} {name!r} takes no {path}.{key}, got {value}; leave it out")
    return parts[name](**values)


def takes(part_class: type[Any], key: str) -> bool:
    """Whether a part takes a key."""
    return key in signature(part_class).parameters


def _keys(section: Section, excluded: Collection[str]) -> Iterator[tuple[str, Any, FieldInfo]]:
    """Each key with its value and its declaration, but for those excluded and those of sections below."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if key not in excluded and not isinstance(value, Section):
            yield key, value, field


def _null_is(field: FieldInfo, name: str) -> Any:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    default = extra.get("null_is")
    return default.get(name) if isinstance(default, dict) else default
