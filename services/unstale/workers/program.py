"""Loads the function that a worker computes tasks with."""

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[float], None]
"""Receives the share of a task that is done, from 0 to 1."""

Compute: TypeAlias = Callable[[bytes, Progress], bytes]
"""Computes the result of one task."""


def described(factory: str, settings: Any) -> str:
    """A program as JSON. factory: `package.module:function`, which makes a `Compute` from the settings."""
    return json.dumps({"factory": factory, "settings": settings})


@lru_cache(maxsize=4)
def loaded(program: str) -> Compute:
    """The function of a program, made once in each process. Raises UserError if this machine cannot compute it."""
    parts = json.loads(program)
    module, _, name = parts["factory"].partition(":")
    compute: Compute = getattr(import_module(module), name)(parts["settings"])
    return compute
