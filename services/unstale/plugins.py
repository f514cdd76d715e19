"""Registry of parts: built-in classes, and classes that other packages register under a group of entry points."""

import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from unstale.errors import UserError, unknown_name

T = TypeVar("T")


def names(group: str, built_in: Iterable[str]) -> tuple[str, ...]:
    """All names of a group and the built-in ones, sorted. Imports nothing."""
    return tuple(sorted({*built_in, *(point.name for point in entry_points(group=group))}))


def load(
    kind: str,
    name: str,
    group: str,
    base: type,
    base_name: str,
    built_in: Mapping[str, type[T]],
    *,
    other_names: Iterable[str] = (),
) -> type[T]:
    """The class of a part. A plug-in cannot replace a built-in class.

    Raises UserError for an unknown name, or a plug-in that cannot be imported or has another base class.

    Args:
        kind: of the part, for messages.
        group: of entry points.
        base, base_name: base class of a plug-in, and its name for messages.
        other_names: valid names without a class, for messages.
    """
    if name in built_in:
        return built_in[name]
    point = entry_point(kind, name, group, (*built_in, *other_names))
    try:
        loaded: type[T] = point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"{kind} {name!r} cannot be imported from {point.value}: {error}") from error
    if not (inspect.isclass(loaded) and issubclass(loaded, base)):
        raise UserError(f"{kind} {name!r} is {point.value}, expected a class derived from {base_name}")
    return loaded


def summary(part: type) -> str:
    """The first paragraph of a part's docstring, as one line."""
    return (inspect.getdoc(part) or "").partition("\n\n")[0].replace("\n", " ")


def source(part: type) -> str:
    """What defines the method of a part, or of its base: the attribute `source`, or the `Source:` of the docstring."""
    for each in part.__mro__:
        documented = inspect.cleandoc(each.__doc__ or "").partition("\nSource: ")[2]
        if own := vars(each).get("source") or " ".join(documented.split()):
            return str(own)
    return ""


def entry_point(kind: str, name: str, group: str, built_in: Iterable[str]) -> EntryPoint:
    """The only entry point of a name. Imports nothing. built_in: names for the message.

    Raises UserError for a name that no package or several packages register.
    """
    points = entry_points(group=group, name=name)
    if not points:
        raise unknown_name(kind, name, names(group, built_in))
    (point, *others) = points
    if others:
        raise UserError(f"{kind} {name!r} is registered by several packages; uninstall all but one of them")
    return point
