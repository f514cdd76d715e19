"""Versions of the packages that decide the bits of results."""

from collections.abc import Mapping

import torch

from unstale.errors import UserError
from unstale.version import __version__


def versions() -> dict[str, str]:
    """By package; of PyTorch's without the device that it was built for."""
    return {"unstale": __version__, "torch": torch.__version__.partition("+")[0]}


def check(expected: Mapping[str, str]) -> None:
    """Raise UserError where a worker of a cluster has other versions than the process of the run."""
    for package, here in versions().items():
        if here != expected[package]:
            raise UserError(
                f"a worker of the Ray cluster has {package} {here}, expected {expected[package]}, as where the run is; "
                "install the same on all machines"
            )
