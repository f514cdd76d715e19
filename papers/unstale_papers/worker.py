"""Runs jobs in a worker process of this machine or of a Ray cluster."""

import json
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import CDLL
from functools import lru_cache
from gc import collect
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.version import __version__
from unstale.workers.program import Compute, Progress
from unstale_client.net.clock import now_s
from unstale_papers.jobs import File


def begin(settings: Mapping[str, Any]) -> Compute:
    """The function that runs jobs, from `Job.order` as JSON to the JSON of `answer`.

    Args:
        settings: `version` of unstale where jobs are planned, and `modules` to import now.

    Raises:
        UserError: This machine has another version.
    """
    if settings["version"] != __version__:
        raise UserError(
            f"a worker of the Ray cluster has unstale {__version__}, expected {settings['version']}, as here; install "
            "the same on all machines"
        )
    for module in settings["modules"]:
        import_module(module)

    def compute(order: bytes, on_progress: Progress) -> bytes:
        reply = json.dumps(answer(json.loads(order), on_progress)).encode()
        release_memory()
        return reply

    return compute


def answer(order: Mapping[str, Any], on_progress: Progress) -> dict[str, Any]:
    """Run a job. order: of `Job.order`, and `gpu_share`: of the GPU's memory.

    Returns:
        `record`, `seconds`, `machine` and `versions`; or `traceback`, which is one sentence for a user's mistake.
    """
    try:
        measure = import_module(order["module"]).measure  # imports torch, once
        started_s = now_s()
        for path, properties in order["files"].items():
            _check_file(path, **properties)
        with in_place(Settings(**order["settings"]), order["scenario"]) as settings:
            _limit_memory(settings.device, order["gpu_share"])
            record = measure(settings, order["options"], on_progress=on_progress)
    except UserError as error:
        return {"traceback": str(error)}
    except Exception:  # noqa: BLE001  (it is stored, and the other jobs continue)
        return {"traceback": traceback.format_exc()}
    return {
        "record": record.to_json(),
        "seconds": now_s() - started_s,
        "machine": _machine(settings.device),
        "versions": _versions(),
    }


def file_of(path: str) -> File:
    """A file in its current state. Raises UserError when it cannot be read."""
    try:
        there = Path(path).stat()
        sha256 = _sha256(path, there.st_size, there.st_mtime_ns)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UserError(f"--data: cannot read {path}: {why}; it has to be there on every machine") from None
    return File(path=path, sha256=sha256, size=there.st_size, modified_ns=there.st_mtime_ns)


@lru_cache(maxsize=8)
def _sha256(path: str, _size: int, _mtime_ns: int) -> str:
    with Path(path).open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _check_file(path: str, *, sha256: str, size: int, modified_ns: int) -> None:
    """Compares the bytes only when size or time differ, as on another machine."""
    with suppress(OSError):  # which `file_of` reports
        there = Path(path).stat()
        if (there.st_size, there.st_mtime_ns) == (size, modified_ns):
            return
    if file_of(path).sha256 != sha256:
        raise UserError(f"--data: {path} is not the same file as when this began; put that back, or begin again")


@contextmanager
def in_place(settings: Settings, scenario: str | None) -> Iterator[Settings]:
    """The settings of a job, with the text of its scenario in a temporary file. scenario: None for none."""
    if scenario is None:
        yield settings
        return
    with TemporaryDirectory(prefix="unstale-") as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(scenario, encoding="utf-8")
        named = settings.scenario.model_copy(update={"name": str(file)})
        yield settings.model_copy(update={"scenario": named})


def _limit_memory(device: str, share: float) -> None:
    """Several processes may use one GPU."""
    if device.startswith("cuda") and share < 1:
        import torch

        from unstale.device_memory import limit_memory

        limit_memory(torch.device(device), share)


def _machine(device: str) -> str:
    """`Linux x86_64, AMD EPYC 7763, 2 cores`"""
    words = [f"{platform.system()} {platform.machine()}", _processor(), f"{os.cpu_count()} cores"]
    if device.startswith("cuda"):
        import torch

        words.append(torch.cuda.get_device_name(device))
    return ", ".join(word for word in words if word)


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's name, which `platform` lacks on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> str:
    """Versions of the packages that affect the bits. Imports none of them."""
    torch = sys.modules.get("torch")
    computed = "" if torch is None else f", torch {torch.__version__}"
    return f"unstale {__version__}{computed}, Python {platform.python_version()}"


def release_memory() -> None:
    """Return free memory to the system.

    glibc keeps free memory that lies before memory in use: after a job of GSGM with 3,000 parked updates on
    EMNIST-MNIST some 15 GB, which other processes then lack.
    """
    collect()
    trim = getattr(CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)
