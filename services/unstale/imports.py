"""Imports of a program at its start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Context for imports of many modules: without garbage collection, which would traverse all of them each time.

    Their objects live as long as the process, so later collections do not traverse them either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
