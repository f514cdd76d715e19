"""Structure of the repository's files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for root in ("services", "proto", "client", "papers/unstale_papers") for path in ROOT.glob(f"{root}/**/*.py")
)


def test_the_source_roots_are_not_packages() -> None:
    assert not (ROOT / "services/__init__.py").exists()
    assert not (ROOT / "client/__init__.py").exists()
    assert not (ROOT / "papers/__init__.py").exists()
    assert not (ROOT / "papers/tests/__init__.py").exists()  # it would hide the folder `tests` of the root


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "a module begins with a docstring"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_exceeds_the_line_limit(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 460


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [
        ("unstale.coordinator.machine", ("torch", "zmq", "msgpack", "prometheus_client", "typer", "unstale_proto")),
        ("unstale_proto.codec", ("torch", "zmq", "unstale")),
        ("unstale_client", ("zmq", "numpy", "pydantic", "unstale_proto")),  # its errors are those of pure packages
        ("unstale_client.client", ("torch", "unstale", "prometheus_client", "typer")),
        ("unstale.simulator.simulation", ("zmq", "prometheus_client", "typer")),
        ("unstale.cli.main", ("torch", "numpy", "rich", "zmq", "sklearn", "unstale_papers")),
        ("unstale_papers.cli.reproduce", ("torch", "numpy", "zmq", "sklearn")),
        ("unstale_papers.cli.sweep", ("torch", "numpy", "zmq", "sklearn")),
        ("unstale_papers.cli.recommend", ("torch", "numpy", "zmq", "sklearn")),
        ("unstale.policies.catalogue", ("torch", "numpy")),
    ],
)
def test_a_pure_package_imports_no_io(module: str, kept_out: tuple[str, ...]) -> None:
    # The import contracts read the text; this test checks the loaded modules in a process of its own.
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in kept_out if name in loaded]


def test_the_constraints_contain_versions_and_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    for line in pins:
        name, equals, version = line.partition("==")
        assert name and equals and version[0].isdigit(), f"{line!r} is no pin"
        assert "/" not in line and "@" not in line
