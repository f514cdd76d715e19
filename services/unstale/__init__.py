"""unstale: federated learning that does not wait.

The names in `__all__` are public. They are imported when they are first used, because most need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unstale.version import __version__ as __version__

if TYPE_CHECKING:
    from unstale.plugins import compensator, local_training, objective, partition, policy, selector, trigger
    from unstale.training.app import App, ClientInfo, Decline, Task, Trained
    from unstale.training.measured import Measured

__all__ = [
    "App",
    "ClientInfo",
    "Decline",
    "Measured",
    "Task",
    "Trained",
    "compensator",
    "local_training",
    "objective",
    "partition",
    "policy",
    "selector",
    "trigger",
]

_MODULES = {name: "unstale.plugins" if name.islower() else "unstale.training.app" for name in __all__} | {
    "Measured": "unstale.training.measured"
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
