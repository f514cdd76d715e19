"""The memory of an object of the project: its parts by class, and the number of entries of each container."""

from collections import deque
from collections.abc import Iterator
from typing import Any

CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def extents(root: object, but: object = None) -> Iterator[tuple[str, int]]:
    """Each container that can be reached through attributes and entries, by its path, with the number of its entries.

    but: is skipped.
    """
    for path, value in reached(root, but):
        if isinstance(value, CONTAINERS):
            yield path, len(value)


def parts(root: object, *kinds: type[Any]) -> list[Any]:
    """The only reachable object of each class."""
    found = {type(value): value for _, value in reached(root) if type(value) in kinds}
    return [found[kind] for kind in kinds]


def reached(root: object, but: object = None) -> Iterator[tuple[str, Any]]:
    """All reachable values, by path. Only objects of the project's own classes are traversed."""
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
