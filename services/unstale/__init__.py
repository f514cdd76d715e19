"""unstale: federated learning that does not wait.

The names in `__all__` are public. They are imported when they are first used, because most need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unstale.version import __version__ as __version__

if TYPE_CHECKING:
    from unstale.api.run import Run
    from unstale.api.runs import Runs, compare
    from unstale.api.serve import Serving, serve
    from unstale.api.simulate import simulate, sweep
    from unstale.errors import UserError
    from unstale.plugins import (
        compensator,
        data,
        local_training,
        model,
        objective,
        partition,
        policy,
        scenario,
        selector,
        toxic,
        tracker,
        trigger,
    )
    from unstale.trackers.tracker import Tracker
    from unstale.trainers.model_sync import ModelSync
    from unstale.trainers.patch import patch
    from unstale.training.app import App, ClientInfo, Decline, Task, Trained
    from unstale.training.measured import Measured
    from unstale_client.client import join

__all__ = [
    "App",
    "ClientInfo",
    "Decline",
    "Measured",
    "ModelSync",
    "Run",
    "Runs",
    "Serving",
    "Task",
    "Tracker",
    "Trained",
    "UserError",
    "compare",
    "compensator",
    "data",
    "join",
    "local_training",
    "model",
    "objective",
    "partition",
    "patch",
    "policy",
    "scenario",
    "selector",
    "serve",
    "simulate",
    "sweep",
    "toxic",
    "tracker",
    "trigger",
]

_NAMES = {
    "unstale.api.run": ("Run",),
    "unstale.api.runs": ("Runs", "compare"),
    "unstale.api.serve": ("Serving", "serve"),
    "unstale.api.simulate": ("simulate", "sweep"),
    "unstale.errors": ("UserError",),
    "unstale.plugins": (
        *("compensator", "data", "local_training", "model", "objective", "partition", "policy", "scenario"),
        *("selector", "toxic", "tracker", "trigger"),
    ),
    "unstale.trackers.tracker": ("Tracker",),
    "unstale.trainers.model_sync": ("ModelSync",),
    "unstale.trainers.patch": ("patch",),
    "unstale.training.app": ("App", "ClientInfo", "Decline", "Task", "Trained"),
    "unstale.training.measured": ("Measured",),
    "unstale_client.client": ("join",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
