"""How many entries everything has that an object of ours holds on to."""

from collections import deque
from collections.abc import Iterator
from typing import Any

CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def extents(root: object) -> Iterator[tuple[str, int]]:
    """Each container that can be reached through attributes and entries, by its path, with the number of its entries.

    Of objects only those whose class is the project's own are looked into.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            yield path, len(value)
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend(
                (f"{path}[{key!r}]", entry)
                for key, entry in inner
                if not isinstance(entry, str | bytes | int)
            )
        elif type(value).__module__.startswith("unstale."):
            waiting.extend((f"{path}.{name}", attribute) for name, attribute in attributes(value))


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)
