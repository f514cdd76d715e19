"""Parts that other packages register under an entry point: which there are, and one of them by its name."""

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from unstale.errors import UserError, unknown_name


def names(group: str, built_in: Iterable[str]) -> tuple[str, ...]:
    """Every name of a group of entry points, with those of our own, sorted."""
    return tuple(sorted({*built_in, *(point.name for point in entry_points(group=group))}))


def load(kind: str, name: str, group: str, base: type, called: str, built_in: Iterable[str]) -> Any:
    """The class that is registered under a name. kind: what it is, for people. base: what it must be derived from, and
    what that is called.

    Raises UserError for a name that is not registered, or cannot be imported.
    """
    point = entry_point(kind, name, group, built_in)
    try:
        loaded = point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"{kind} {name!r} cannot be imported from {point.value}: {error}") from error
    if not (inspect.isclass(loaded) and issubclass(loaded, base)):
        raise UserError(f"{kind} {name!r} is {point.value}, expected a class derived from {called}")
    return loaded


def entry_point(kind: str, name: str, group: str, built_in: Iterable[str]) -> EntryPoint:
    """The entry point of one name. Nothing is imported for it.

    Args:
        kind: what it is, for people.
        name: that other packages register.
        group: of entry points.
        built_in: names of our own, for the advice.

    Raises:
        UserError: for a name that is not registered, or registered by several packages.
    """
    points = entry_points(group=group, name=name)
    if not points:
        raise unknown_name(kind, name, names(group, built_in))
    (point, *others) = points
    if others:
        raise UserError(f"{kind} {name!r} is registered by several packages; uninstall all but one of them")
    return point
