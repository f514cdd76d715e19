"""Import of user code that a configuration names as `package.module:factory`."""

from collections.abc import Callable
from importlib import import_module

from unstale.errors import UserError


def import_factory(kind: str, name: str) -> Callable[..., object]:
    """The callable that `package.module:factory` names. kind: of its result, for messages. Raises UserError."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UserError(f"{kind} {name!r} is no name of a factory; expected package.module:factory")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{kind} {name!r} cannot be imported ({' '.join(str(error).split())}); expected "
            "package.module:factory, its folder on PYTHONPATH"
        ) from error
    factory: Callable[..., object] | None = getattr(module, attribute, None)
    if not callable(factory):
        raise UserError(f"{kind} {name!r}: {module_name} has no callable {attribute!r}")
    return factory
