"""Settings of parts with a name, such as policies: validation, and descriptions for people."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from unstale.errors import UserError, nearest
from unstale.settings.values import NOUNS, Section, range_of

NO_OTHERS: Mapping[str, Any] = MappingProxyType({})


def setting(default: Any, description: str, source: str, **bounds: Any) -> Any:
    """A field of `PartSettings`. source: of the default. bounds: as for pydantic's `Field`."""
    field: Any = Field(default, description=description, json_schema_extra={"source": source}, **bounds)
    return field


class PartSettings(Section):
    """Settings of a part. Every field has a description and a source of its default, as in `setting`."""


S = TypeVar("S", bound=PartSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A setting of a part, for people."""

    name: str
    type: str  # such as `a number` or `one of a, b`
    range: str  # such as `> 0 and <= 1`; "" for none
    default: Any  # None if `required`
    # in synchronous rounds, and in the profile `reference`
    synchronous_default: Any
    reference_default: Any
    required: bool
    description: str
    source: str  # of the default

    @property
    def expected(self) -> str:
        """Type and range in words, such as `a number > 0 and <= 1`."""
        return f"{self.type} {self.range}".strip()


def checked(part: str, name: str, settings_class: type[S], values: Mapping[str, Any]) -> S:
    """Validated settings of a part. part: its kind, such as `policy`; name: its name. Raises UserError."""
    try:
        return settings_class(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if not first["loc"]:  # a check over several settings
        raise UserError(f"{part} {name!r}: {first['msg'].removeprefix('Value error, ')}")
    key = str(first["loc"][0])
    fields = settings_class.model_fields
    if first["type"] == "extra_forbidden":
        raise unknown(part, name, key, fields)
    expected = _described(key, fields[key], NO_OTHERS, NO_OTHERS).expected
    if first["type"] == "missing":
        raise UserError(f"setting {key!r} of {part} {name!r} is missing, expected {expected}")
    raise UserError(f"setting {key!r} of {part} {name!r} is {first['input']!r}, expected {expected}")


def unknown(part: str, name: str, key: str, known: Collection[str]) -> UserError:
    """The error for a setting that a part does not have."""
    return UserError(f"unknown setting {key!r} of {part} {name!r}{nearest(key, known) if known else _NO_SETTINGS}")


_NO_SETTINGS = ", which has no settings"


def own(
    part: str, name: str, factory: Callable[..., Any], section: Section, context: Collection[str]
) -> dict[str, Any]:
    """The validated values of `section.settings`, for parameters that are no keys of the section; null is the default.

    factory: class of the part, or a function that makes it. context: parameters that are not set by the user. Raises
    UserError for a setting that the factory does not take.
    """
    given: Mapping[str, Any] = vars(section).get("settings", NO_OTHERS)
    if not given:
        return {}
    parameters = {key: one for key, one in _parameters(factory).items() if key not in context}
    for key in given:
        if key not in parameters or key in type(section).model_fields:
            raise unknown(part, name, key, parameters)
    return {key: _typed(part, name, parameters[key], value) for key, value in given.items() if value is not None}


def _parameters(factory: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a class or function that have a name, with annotations as types where they resolve."""
    try:
        taken = signature(factory, eval_str=True)
    except NameError:
        taken = signature(factory)
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {key: parameter for key, parameter in taken.parameters.items() if parameter.kind not in variadic}


def _typed(part: str, name: str, parameter: Parameter, value: Any) -> Any:
    """The value of a setting, in the type of the parameter that takes it. Raises UserError."""
    annotation = parameter.annotation
    if annotation is Parameter.empty or isinstance(annotation, str):  # none, or one that does not resolve
        return value
    try:
        return TypeAdapter(annotation).validate_python(value)
    except PydanticUserError:  # a type that pydantic does not know
        return value
    except ValidationError:
        expected = _described(parameter.name, FieldInfo.from_annotation(annotation), NO_OTHERS, NO_OTHERS).expected
    raise UserError(f"setting {parameter.name!r} of {part} {name!r} is {value!r}, expected {expected}")


def described(
    settings_class: type[PartSettings],
    *,
    synchronous: Mapping[str, Any] = NO_OTHERS,
    reference: Mapping[str, Any] = NO_OTHERS,
) -> tuple[SettingDescription, ...]:
    """Every setting, in order. synchronous, reference: other defaults in synchronous rounds and in this profile."""
    return tuple(_described(key, field, synchronous, reference) for key, field in settings_class.model_fields.items())


def _described(
    key: str, field: FieldInfo, synchronous: Mapping[str, Any], reference: Mapping[str, Any]
) -> SettingDescription:
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, Mapping) else {}
    kind, is_nullable = _kind(field.annotation)
    return SettingDescription(
        name=key,
        type=f"{kind} or null" if is_nullable else kind,
        range=range_of(field.metadata),
        default=default,
        synchronous_default=synchronous.get(key, default),
        reference_default=reference.get(key, default),
        required=field.is_required(),
        description=field.description or "",
        source=str(extra.get("source", "")),
    )


def _kind(annotation: Any) -> tuple[str, bool]:
    """The type in words, and whether null is allowed."""
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    words = [_noun(one) for one in alternatives if one is not type(None)]
    return " or ".join(words), type(None) in alternatives


def _noun(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return f"a list, each {_noun(get_args(annotation)[0])}"
    return NOUNS.get(annotation, str(annotation))
