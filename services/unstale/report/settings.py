"""Settings of runs as texts by key, and the keys in which runs differ. Pure."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from unstale.config.keys import KEYS, OPEN_SECTIONS, SECTIONS
from unstale.config.settings import Settings
from unstale.config.write import as_yaml
from unstale.errors import unknown_name

SEED = "seed"


def values(settings: Settings) -> dict[str, str]:
    """Return the YAML text of every key, with a key for each setting of a policy or another part."""
    by_key: dict[str, str] = {}
    for key in KEYS:
        value = attrgetter(key)(settings)
        if key in OPEN_SECTIONS:
            by_key |= {f"{key}.{name}": as_yaml(setting) for name, setting in value.items()}
        else:
            by_key[key] = as_yaml(value)
    return by_key


def differing(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ, in the order of the configuration file. A missing key has no value."""
    keys = dict.fromkeys(key for values_of_run in runs for key in values_of_run)
    order = {key: number for number, key in enumerate(KEYS)}
    differ = [key for key in keys if len({values_of_run.get(key) for values_of_run in runs}) > 1]
    return sorted(differ, key=lambda key: (order.get(_declared(key), 0), key))


def matching(name: str, runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys of a section, or the key itself. Raises UserError for an unknown name."""
    keys = dict.fromkeys(key for values_of_run in runs for key in values_of_run)
    matches = [key for key in keys if key == name or key.startswith(f"{name}.")]
    if not matches and name not in SECTIONS and name not in OPEN_SECTIONS:
        raise unknown_name("key", name, {*KEYS, *keys})
    return matches


def _declared(key: str) -> str:
    """Return the key of `KEYS` that declares a key."""
    return next((section for section in OPEN_SECTIONS if key.startswith(f"{section}.")), key)
