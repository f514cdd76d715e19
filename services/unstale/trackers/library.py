"""Imports of the libraries of trackers, which are extras of the distribution."""

from importlib import import_module
from typing import Any

from unstale.errors import UserError


def library(module: str, extra: str) -> Any:
    """Import a module that an extra has. Raises UserError where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"tracker {extra!r} needs a library that cannot be imported ({error}); pip install 'unstale[{extra}]', or "
            "leave the tracker out"
        ) from None
