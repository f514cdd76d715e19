"""Settings of runs as values by key, and in what runs differ. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from unstale.config.keys import KEYS, OPEN_SECTIONS, SECTIONS
from unstale.config.settings import Settings
from unstale.config.write import as_yaml
from unstale.errors import unknown_name

SEED = "seed"


def values(settings: Settings) -> dict[str, str]:
    """Every key with its value as the configuration file has it; settings of parts one by one."""
    by_key: dict[str, str] = {}
    for key in KEYS:
        value: Any = settings
        for part in key.split("."):
            value = getattr(value, part)
        if key in OPEN_SECTIONS:
            by_key |= {f"{key}.{name}": as_yaml(own) for name, own in value.items()}
        else:
            by_key[key] = as_yaml(value)
    return by_key


def differing(of_runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that have not the same value in all of them, in the order of the file. One that is not set has none."""
    every = dict.fromkeys(key for of_run in of_runs for key in of_run)
    order = {key: place for place, key in enumerate(KEYS)}
    found = [key for key in every if len({of_run.get(key) for of_run in of_runs}) > 1]
    return sorted(found, key=lambda key: (order.get(_listed(key), 0), key))


def matching(name: str, of_runs: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that a name stands for: itself, or all of a section. Raises UserError when it stands for none."""
    every = dict.fromkeys(key for of_run in of_runs for key in of_run)
    found = [key for key in every if key == name or key.startswith(f"{name}.")]
    if not found and name not in SECTIONS and name not in OPEN_SECTIONS:
        raise unknown_name("key", name, {*KEYS, *every})
    return found


def _listed(key: str) -> str:
    """The key of `KEYS` that it is, or lies in."""
    return next((section for section in OPEN_SECTIONS if key.startswith(f"{section}.")), key)
