"""unstale: federated learning that does not wait.

The names in `__all__` are public. They are imported when they are first used, because most need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstale.training.app import App, ClientInfo, Decline, Task, Trained
    from unstale.training.measured import Measured

__version__ = "0.1.0"
__all__ = ["App", "ClientInfo", "Decline", "Measured", "Task", "Trained"]

_MODULES = dict.fromkeys(__all__, "unstale.training.app") | {"Measured": "unstale.training.measured"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
