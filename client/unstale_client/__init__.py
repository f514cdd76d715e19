"""The client of unstale without PyTorch: takes part in a run with a training loop of your own.

`Client`, `Task` and `join` are imported when they are used: parts of unstale that must reach no socket import the
errors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unstale_client.errors import UserError

if TYPE_CHECKING:
    from unstale_client.client import Client, Task, join

__all__ = ["Client", "Task", "UserError", "join"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("unstale_client.client"), name)
