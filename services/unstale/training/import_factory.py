"""Import of user code that a configuration names as `package.module:factory`."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from unstale.errors import UserError


def import_factory(kind: str, name: str) -> Callable[..., object]:
    """The callable that `package.module:factory` names. kind: of its result, for messages. Raises UserError."""
    factory = import_object(kind, name, "factory")
    if not callable(factory):
        module_name, _, attribute = name.partition(":")
        raise UserError(f"{kind} {name!r}: {module_name} has no callable {attribute!r}")
    return factory  # type: ignore[no-any-return]


def import_object(kind: str, name: str, what: str = "name") -> Any:
    """The object that `package.module:name` names; None if the module does not have it.

    The module may be in the current folder. kind, what: of the object, for messages. Raises UserError.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        article = "a factory" if what == "factory" else "an object"
        raise UserError(f"{kind} {name!r} is no name of {article}; expected package.module:{what}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that no file there hides another module
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{kind} {name!r} cannot be imported ({' '.join(str(error).split())}); expected "
            f"package.module:{what}, in the current folder or one on PYTHONPATH"
        ) from error
    return getattr(module, attribute, None)
