"""Environments with libraries that the one of the tests lacks, each made once in the user's cache."""

import fcntl
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
INSTALL_S, TESTS_S = 600, 900  # on a busy machine


def cache() -> Path:
    """The folder of all environments, which exists."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unstale-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python_with(name: str, libraries: Sequence[str]) -> Path:
    """The Python of an environment with libraries before those of this one, which it has where they suffice.

    name: of its folder.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache() / f"{name}-{version}"
    python, complete = folder / "bin/python", folder / "complete"
    here = sysconfig.get_path("purelib")  # of this checkout
    has = sorted(f"{one.name}=={one.version}" for one in distributions(path=[here]))
    asked = "\n".join((*libraries, "", *has))
    with Path(f"{folder}.lock").open("w") as lock:  # of processes that run tests at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_complete = complete.exists() and complete.read_text() == asked
        if not is_complete:
            venv.create(folder, clear=True, with_pip=True)
        base = folder / f"lib/python{version}/site-packages/base.pth"
        base.write_text(f"import site; site.addsitedir({here!r})\n")
        if not is_complete:
            subprocess.run([python, "-m", "pip", "install", "-q", *libraries], check=True, timeout=INSTALL_S)
            complete.write_text(asked)
    return python


def check_tests(python: Path, *arguments: str) -> None:
    """Run tests with the packages of the repository. None may fail or be skipped. arguments: of pytest."""
    sources = os.pathsep.join(str(ROOT / part) for part in ("services", "proto", "client", "papers"))
    environment = {**os.environ, "PYTHONPATH": sources}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TESTS_S)
    assert ended.returncode == 0 and "skipped" not in ended.stdout, ended.stdout[-4000:]
