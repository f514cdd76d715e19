"""Ctrl-C in an import, a full disk, and an encoding without some characters."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import yaml

INTERRUPTED = (130, -signal.SIGINT)  # in a shell both are 130: Python may end itself by the signal
SWALLOWED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("something is missing")
"""


def unstale(
    *arguments: str, output: IO[bytes] | int = subprocess.PIPE, **variables: str
) -> "subprocess.CompletedProcess[bytes]":
    environment = {name: text for name, text in os.environ.items() if not name.startswith("UNSTALE_")}
    return subprocess.run(
        [sys.executable, "-m", "unstale", *arguments],
        stdout=output,
        stderr=subprocess.PIPE,
        check=False,
        env=environment | variables,
        preexec_fn=_react_to_ctrl_c,
    )


def _react_to_ctrl_c() -> None:
    """Undo what a background job of a shell inherits: it ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("how", ["import signal; signal.raise_signal(signal.SIGINT)", SWALLOWED])
@pytest.mark.parametrize(
    ("module", "command"),
    [("typer", "server"), ("yaml", "--help"), ("torch", "policies fedavg"), ("torch", "conformance")],
)
def test_ctrl_c_in_an_import_is_one_line(module: str, command: str, how: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(how)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = unstale(*command.split(), PYTHONPATH=path)
    assert (ended.stdout, ended.stderr) == (b"", b"unstale: interrupted\n")
    assert ended.returncode in INTERRUPTED


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["policies", "config show", "--help", "policies fedavg", "scenario list --json"])
def test_output_that_cannot_be_written_is_one_line(command: str, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = unstale(*command.split(), output=full, PYTHONUNBUFFERED=unbuffered)
    assert ended.stderr == b"unstale: cannot write to standard output: no space left on device\n"
    assert ended.returncode == 2


def test_a_closed_pipe_ends_the_command_silently() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ended = unstale("config", "show", output=pipe)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize(
    "command", ["scenario show availability-01 --clients 3", "policies wkafl", "partition show --clients 3", "--help"]
)
def test_output_without_unicode_has_lookalikes(command: str, encoding: str) -> None:
    ended = unstale(*command.split(), PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (0, b"")
    text = ended.stdout.decode(encoding)
    assert "?" not in text
    if command.startswith("scenario"):
        assert ". up to 25%, : up to 50%, + up to 75%, # up to 100%" in text


def test_configuration_in_ascii_loads_to_the_same_values() -> None:
    arguments = ("config", "show", "--run", "Läufe/±")
    shown = [
        yaml.safe_load(unstale(*arguments, PYTHONIOENCODING=name).stdout.decode(name)) for name in ("ascii", "utf-8")
    ]
    assert shown[0] == shown[1]
    assert shown[0]["run"]["directory"] == "Läufe/±"


def test_an_error_of_our_own_is_still_raised() -> None:
    program = (
        "import unstale.cli.config as config, unstale.__main__ as entry\n"
        "def fail(settings): raise OSError('ours')\n"
        "config.resolved = fail\n"
        "import sys; sys.argv = ['unstale', 'config', 'show']\n"
        "entry.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("OSError: ours\n")
