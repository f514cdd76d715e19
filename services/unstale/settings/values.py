"""Building blocks of the configuration: limits, types, addresses, fields and sections."""

import re
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from unstale.errors import UserError
from unstale_client.addresses import is_host_and_port, is_loopback

CLIENTS_MAX = 1_000_000  # the wire contract's limit
SECONDS_MAX = 7 * 24 * 3600.0  # the wire contract's limit
SEED_MAX = 2**63 - 1  # the wire contract's limit
THREADS_MAX = 1024  # above the cores of any machine
NAME_MAX = 128  # the wire contract's limit
TEXT_MAX = 4096  # characters of a path or an address
CLIENT_SETTINGS_MAX = 32  # here and below: the wire contract's limits
CLIENT_SETTING_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")
CLIENT_SETTING_TEXT_MAX = 200  # characters
CLIENT_SETTING_INTEGER_MAX = 2**63 - 1

Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]

NOUNS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    list: "a list",
}
"""Nouns for the types of values, in error messages and descriptions."""


def range_of(metadata: Sequence[Any]) -> str:
    """The bounds in the metadata of a field, in words, such as `from 1 to 1,024`; "" without bounds."""
    bounds = {
        attribute: f"{getattr(bound, attribute):,}".removesuffix(".0")
        for bound in metadata
        for attribute in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if hasattr(bound, attribute)
    }
    if "min_length" in bounds and "max_length" in bounds:
        return f"of {bounds['min_length']} to {bounds['max_length']} characters"
    if "ge" in bounds and "le" in bounds:
        return f"from {bounds['ge']} to {bounds['le']}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "of length >=", "max_length": "of length <="}
    return " and ".join(f"{signs[attribute]} {number}" for attribute, number in bounds.items())


def _checked_address(address: str) -> str:
    if not (address.startswith("tcp://") and is_host_and_port(address.removeprefix("tcp://"))):
        raise PydanticCustomError("address", "not tcp://HOST:PORT")
    return address


def _checked_http_address(address: str) -> str:
    if not is_host_and_port(address):
        raise PydanticCustomError("address", "not HOST:PORT")
    return address


Address = Annotated[Text, AfterValidator(_checked_address)]
HttpAddress = Annotated[Text, AfterValidator(_checked_http_address)]


def _checked_client_settings(settings: dict[str, Any]) -> dict[str, Any]:
    problem = None
    if len(settings) > CLIENT_SETTINGS_MAX:
        problem = f" has {len(settings)} names, expected at most {CLIENT_SETTINGS_MAX}"
    for name, value in settings.items():
        if not CLIENT_SETTING_NAME.fullmatch(name):
            problem = f" has the name {name!r:.80}, expected 1 to 64 characters of A-Za-z0-9_./-"
        elif not _is_client_setting(value):
            problem = (
                f".{name} is {value!r:.80}, expected a finite number, an integer of 64 bits, or a text of at most "
                f"{CLIENT_SETTING_TEXT_MAX} characters"
            )
    if problem is not None:
        raise PydanticCustomError("sentence", "client_settings{problem}", {"problem": problem})
    return settings


def _is_client_setting(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= CLIENT_SETTING_TEXT_MAX
    if isinstance(value, float):
        return isfinite(value)
    return type(value) is int and abs(value) <= CLIENT_SETTING_INTEGER_MAX


def _checked_plain(settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        if not _is_plain(value):
            shown = {"name": name, "value": f"{value!r:.80}"}
            raise PydanticCustomError("setting", f"{{name}} is {{value}}, expected {_PLAIN}", shown)
    return settings


_PLAIN = "a number of 64 bits, a text, true, false, null, or a list or mapping of these"


def _is_plain(value: Any) -> bool:
    """Whether a value has a form in YAML and on the wire."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, int):
        return abs(value) <= CLIENT_SETTING_INTEGER_MAX
    return value is None or isinstance(value, str)


PlainSettings = Annotated[dict[str, Any], AfterValidator(_checked_plain)]
"""Settings by name, which the part that takes them validates."""

TARGET = re.compile(r"\s*([a-z0-9_./-]{1,64})\s*(<=?|>=?)\s*(\S+)\s*")
"""The name of a metric, a sign and a number, as in `mae < 0.2`."""


def _checked_target(text: str) -> str:
    match = TARGET.fullmatch(text)
    try:
        is_target = match is not None and isfinite(float(match[3]))
    except ValueError:
        is_target = False
    if not is_target:
        raise PydanticCustomError("target", "not NAME < NUMBER")
    return text


TargetText = Annotated[Text, AfterValidator(_checked_target)]
SettingsOfClients = Annotated[dict[str, Any], AfterValidator(_checked_client_settings)]


def check_link(address_key: str, address: str, path_key: str, path: str | None, *, insecure: bool) -> None:
    """Raise UserError when a link to another machine would be in plain text, unless `insecure` permits it.

    path: of the key files for encryption. address_key, path_key: configuration keys of address and path.
    """
    if path is None and not insecure and not is_loopback(address):
        raise UserError(
            f"{address_key} is {address!r}, on another machine, expected {path_key} too, "
            f"or {address_key.partition('.')[0]}.insecure true for plain text"
        )


def setting(
    default: Any, description: str, *, unit: str = "", expected: str = "", null_is: Any = None, **bounds: Any
) -> Any:
    """A key of the configuration, as a field of a `Section`.

    Args:
        unit: "" for none.
        expected: Type and range in words, if they do not follow from the type and the bounds.
        null_is: Value where the key is null: one for all parts, or one for each name of a part.
        bounds: As for pydantic's `Field`.
    """
    extra = {"unit": unit, "expected": expected, "null_is": null_is}
    known: Any = {name: value for name, value in extra.items() if value not in ("", None)}
    return Field(default, description=description, json_schema_extra=known or None, **bounds)


def ray_address(description: str) -> Any:
    """A key with the address of a Ray cluster, or null."""
    pattern = r"^(auto|local|(ray://)?[^/\s]+:[0-9]{1,5})$"
    return setting(None, description, expected="auto, local, HOST:PORT or ray://HOST:PORT", pattern=pattern)


class Section(BaseModel):
    """A group of configuration keys. Frozen; rejects unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
