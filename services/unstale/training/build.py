"""A part made from its name and its settings: what was chosen, or one sentence."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from unstale.errors import UserError, nearest, unknown_name

Part = TypeVar("Part", bound=BaseModel)


def build(kind: str, types: Mapping[str, type[Part]], name: str, settings: Mapping[str, Any]) -> Part:
    """The part called `name` with these settings.

    kind: what it is, as the configuration calls it, such as `partition`. types: by name. Raises UserError for an
    unknown name or setting, and for a value out of bounds.
    """
    if name not in types:
        raise unknown_name(kind, name, types)
    fields = types[name].model_fields
    for key in settings:
        if key not in fields:
            advice = nearest(key, fields) if fields else ", which has no settings"
            raise UserError(f"unknown setting {key!r} of {kind} {name!r}{advice}")
    try:
        return types[name].model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not first["loc"]:  # a check over several settings
        raise UserError(f"{kind} {name!r}: {expected}")
    raise UserError(f"{kind}.{first['loc'][0]} is {first['input']!r}, expected {expected}")
