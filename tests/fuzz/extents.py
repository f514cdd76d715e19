"""What an object of ours holds on to: its parts by their class, and how many entries everything has."""

from collections import deque
from collections.abc import Iterator
from typing import Any

CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def extents(root: object, but: object = None) -> Iterator[tuple[str, int]]:
    """Each container that can be reached through attributes and entries, by its path, with the number of its entries.

    but: is not looked into.
    """
    for path, value in reached(root, but):
        if isinstance(value, CONTAINERS):
            yield path, len(value)


def parts(root: object, *kinds: type[Any]) -> list[Any]:
    """The one object of each class that can be reached so."""
    found = {type(value): value for _, value in reached(root) if type(value) in kinds}
    return [found[kind] for kind in kinds]


def reached(root: object, but: object = None) -> Iterator[tuple[str, Any]]:
    """Everything, by its path. Of objects only those whose class is the project's own are looked into."""
    seen: set[int] = {id(but)}
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, CONTAINERS):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend(
                (f"{path}[{key!r}]", entry) for key, entry in inner if not isinstance(entry, str | bytes | int)
            )
        elif type(value).__module__.startswith("unstale."):
            waiting.extend((f"{path}.{name}", attribute) for name, attribute in attributes(value))


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)
