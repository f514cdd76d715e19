"""The tests of trainers, in an environment of their own that also has the libraries; it is made once."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LIBRARIES = (*EXTRAS["huggingface"], *EXTRAS["lightning"], EXTRAS["peft"][-1])
TESTS = ("tests/trainers", "tests/examples/test_lora.py")
INSTALL_S, TESTS_S = 600, 900  # on a busy machine


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with the libraries, in which the packages of this one can be imported."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "unstale-tests" / f"trainers-{sys.version_info.major}.{sys.version_info.minor}"
    python, complete = folder / "bin/python", folder / "complete"
    if not complete.exists():
        venv.create(folder, clear=True, with_pip=True)
        site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        here = sysconfig.get_path("purelib")
        (site / "base.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        subprocess.run([python, "-m", "pip", "install", "-q", *LIBRARIES], check=True, timeout=INSTALL_S)
        complete.touch()
    return python


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + TESTS_S)
def test_the_tests_of_trainers_pass_where_the_libraries_are(python: Path) -> None:
    sources = os.pathsep.join(str(ROOT / part) for part in ("services", "proto", "client", "papers"))
    environment = {**os.environ, "PYTHONPATH": sources}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "--ignore", __file__]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TESTS_S)
    assert ended.returncode == 0 and "skipped" not in ended.stdout, ended.stdout[-4000:]
