"""The image as its Dockerfile says it: lint, what goes in, who runs, and whether it says how it is.

Nothing is built here: that takes a container engine.
"""

import json
import re
import shutil
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

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def instructions() -> list[tuple[str, str]]:
    """Word and rest of each, on one line."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def variables() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", of("ENV")[-1]))


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
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
    assert done.stdout.splitlines() == PROJECT["dependencies"]


@contextmanager
def answering(status: int) -> Iterator[str]:
    """URL of a server that answers with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/healthz"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.network
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_tells_a_process_that_is_well_from_one_that_is_not(status: int, code: int) -> None:
    _, *command = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    with answering(status) as url:
        done = subprocess.run(
            [sys.executable, *command],
            env={"HEALTH_URL": url},
            check=False,
            capture_output=True,
            timeout=60,
        )
    assert done.returncode == code


def test_by_default_it_asks_a_server_where_that_answers() -> None:
    from unstale.config import Settings

    assert variables()["HEALTH_URL"] == f"http://{Settings().server.http_address}/healthz"


@pytest.mark.parametrize(
    ("wanted", "found", "code"), [("", "cuda", 0), ("cpu", "cpu", 0), ("cpu", "cuda", 1)]
)
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
