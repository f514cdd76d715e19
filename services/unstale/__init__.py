"""unstale: federated learning that does not wait.

The names in `__all__` are public. They are imported when they are first used, because most need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstale.api.run import Run
    from unstale.api.runs import Runs, compare
    from unstale.api.serve import Serving, serve
    from unstale.api.simulate import simulate, sweep
    from unstale.errors import UserError
    from unstale.training.app import App, ClientInfo, Decline, Task, Trained
    from unstale.training.measured import Measured
    from unstale_client.client import join

__version__ = "0.1.0"
__all__ = [
    "App",
    "ClientInfo",
    "Decline",
    "Measured",
    "Run",
    "Runs",
    "Serving",
    "Task",
    "Trained",
    "UserError",
    "compare",
    "join",
    "serve",
    "simulate",
    "sweep",
]

_MODULES = {
    **dict.fromkeys(("App", "ClientInfo", "Decline", "Task", "Trained"), "unstale.training.app"),
    **dict.fromkeys(("Runs", "compare"), "unstale.api.runs"),
    **dict.fromkeys(("Serving", "serve"), "unstale.api.serve"),
    **dict.fromkeys(("simulate", "sweep"), "unstale.api.simulate"),
    "Measured": "unstale.training.measured",
    "Run": "unstale.api.run",
    "UserError": "unstale.errors",
    "join": "unstale_client.client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
