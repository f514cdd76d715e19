"""Error messages of settings that pydantic refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from unstale.errors import UserError, nearest
from unstale.toxics.delay import DISTRIBUTIONS

M = TypeVar("M", bound=BaseModel)

SHOWN_MAX = 80  # characters of a wrong value in a message

_BOUNDS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}

_NOUNS = {
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
    "bool_parsing": "true or false",
    "string_type": "a text",
    "too_short": "at least one entry",
}

_OTHER_MESSAGES = {
    "value_error": "{prefix}{error}",  # of a validator over several settings
    "invalid_key": "{value} is not the name of a setting",  # YAML reads `on: 5` as `true: 5`
    "missing": "{name} is missing",
    "union_tag_not_found": "{name} has no distribution{nearest}",
    "union_tag_invalid": "{name}.distribution is {tag!r}{nearest}",
}


def validated(model: type[M], data: Any, where: str) -> M:
    """Make a model from plain data. Raises UserError, prefixed by where."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise user_error(error, model, where) from None


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Prefix the message of a UserError with `where`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def user_error(error: ValidationError, model: type[BaseModel], where: str) -> UserError:
    """The first error of a validation as one line that begins with `where`."""
    errors = error.errors(include_url=False)
    # An unknown setting before others: a misspelled setting is missing as well.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    kind, context = first["type"], first.get("ctx", {})
    path = [str(key) for key in first["loc"]]
    # pydantic adds the tag of a union to the path.
    name = ".".join(path[:1] + [key for key in path[1:] if key not in DISTRIBUTIONS])
    if kind == "extra_forbidden":
        return UserError(f"{where}: unknown setting {name!r}{_advice(path, model)}")
    if kind in _OTHER_MESSAGES:
        message = _OTHER_MESSAGES[kind].format(
            name=name,
            prefix=name and f"{name}: ",
            value=shown(first["input"]),
            nearest=nearest(str(context.get("tag", "")), DISTRIBUTIONS),
            **context,
        )
        return UserError(f"{where}: {message}")
    subject = f"{where}: {name}" if name else where
    return UserError(f"{subject} is {shown(first['input'])}, expected {_expected(first)}")


def _advice(path: list[str], model: type[BaseModel]) -> str:
    """The setting that is probably meant by the last key of a path."""
    tags = [key for key in path[1:] if key in DISTRIBUTIONS]
    if tags:
        return nearest(path[-1], DISTRIBUTIONS[tags[-1]].model_fields)
    return nearest(path[-1], model.model_fields) if len(path) == 1 else ""


def _expected(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**error["ctx"])
    message = error["msg"].removeprefix("Input should be ")
    return _NOUNS.get(kind, message[:1].lower() + message[1:])


def shown(value: Any) -> str:
    """A value for a message, cut to `SHOWN_MAX` characters."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
