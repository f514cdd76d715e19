"""What pydantic finds wrong in a toxic, a device or a scenario, told in one sentence."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from unstale.errors import UserError, nearest
from unstale.toxics.delay import DISTRIBUTIONS

SHOWN_MAX = 80  # characters of a wrong value that a sentence repeats

_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
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


def user_error(error: ValidationError, model: type[BaseModel], where: str) -> UserError:
    """The first mistake. model: what was to be made. where: what it is, and where it stands."""
    first = _first(error)
    kind, context, places = first["type"], first.get("ctx", {}), [str(place) for place in first["loc"]]
    # A union is chosen by its tag, which pydantic counts as a place of its own.
    tags = [place for place in places[1:] if place in DISTRIBUTIONS]
    name = ".".join(place for number, place in enumerate(places) if not number or place not in DISTRIBUTIONS)
    if kind == "sentence":  # of our own, over several settings
        return UserError(f"{where}: {name}{': ' if name else ''}{first['msg']}")
    if kind == "extra_forbidden":
        known = DISTRIBUTIONS[tags[-1]] if tags else model.model_fields.get(places[0], model)
        return UserError(f"{where}: unknown setting {name!r}{_nearest_setting(places[-1], known)}")
    if kind in _STRUCTURE:
        return UserError(f"{where}: {_STRUCTURE[kind](name, first['input'], context)}")
    subject = f"{where}: {name} is" if name else f"{where} is"
    return UserError(f"{subject} {shown(first['input'])}, expected {_expected(kind, context, first['msg'])}")


_STRUCTURE: dict[str, Callable[[str, Any, dict[str, Any]], str]] = {
    # `on: 5`, which YAML reads as `true: 5`, for one
    "invalid_key": lambda _name, value, _context: f"{shown(value)} is no name of a setting",
    "missing": lambda name, _value, _context: f"{name} is missing",
    "union_tag_not_found": lambda name, _value, _context: (
        f"{name} has no distribution{nearest('', DISTRIBUTIONS)}"
    ),
    "union_tag_invalid": lambda name, _value, context: (
        f"{name}.distribution is {context['tag']!r}{nearest(context['tag'], DISTRIBUTIONS)}"
    ),
}
"""Error messages about the structure of settings, by pydantic's type of error: of name, value and context."""


def _first(error: ValidationError) -> ErrorDetails:
    """The first mistake; an unknown setting before others, because a misspelled one is missing as well."""
    mistakes = error.errors(include_url=False)
    return next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])


def _nearest_setting(name: str, known: object) -> str:
    """The setting that is meant, where the settings are known: those of a model."""
    return (
        nearest(name, known.model_fields) if isinstance(known, type) and issubclass(known, BaseModel) else ""
    )


def _expected(kind: str, context: dict[str, Any], message: str) -> str:
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]:g}"
    if kind in _NOUNS:
        return _NOUNS[kind]
    expected = message.removeprefix("Input should be ")
    return expected[:1].lower() + expected[1:]


def shown(value: Any) -> str:
    """A value for a sentence; what is long is cut."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
