"""Programs of workers: descriptions, as JSON, of the functions that compute tasks."""

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[float], None]
"""Receives the completed share of a task, from 0 to 1."""

Compute: TypeAlias = Callable[[bytes, Progress], bytes]
"""Computes the result of one task."""


def described(factory: str, settings: Any) -> str:
    """The program of a factory, `package.module:function`, which makes a `Compute` from the settings."""
    return json.dumps({"factory": factory, "settings": settings})


@lru_cache(maxsize=4)
def loaded(program: str) -> Compute:
    """The function of a program; the process caches four. Raises UserError if this machine does not suit it."""
    parts = json.loads(program)
    module, _, name = parts["factory"].partition(":")
    compute: Compute = getattr(import_module(module), name)(parts["settings"])
    return compute
