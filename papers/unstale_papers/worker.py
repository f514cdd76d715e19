"""A process that does jobs, one after another, and how one is done.

    python -m unstale_papers.worker DESCRIPTOR_OF_PIPE [MODULE]

It imports the module, which takes a second or two where that is PyTorch's, says that it is ready, and from then on does
what it is told. It ends when the pipe does, in the middle of a job too,
so that it never outlives who started it. Nothing is pickled: words are JSON.
"""

import json
import os
import platform
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import CDLL
from functools import lru_cache
from gc import collect
from hashlib import file_digest
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from unstale import __version__
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.net.clock import now_s
from unstale_papers.jobs import File

Pipe: TypeAlias = "Connection[Any, Any]"

SHARE_STEP = 0.01  # of a job: progress is told no more often


def say(pipe: Pipe, words: object) -> None:
    """Raises OSError when the other side is gone."""
    pipe.send_bytes(json.dumps(words).encode())


def hear(pipe: Pipe) -> Any:
    """What the other side said. Raises EOFError or OSError when it is gone."""
    return json.loads(pipe.recv_bytes())


def answer(order: Mapping[str, Any], on_progress: Callable[[float], None]) -> dict[str, Any]:
    """Do a job. order: of `Job.order`. on_progress: told the share that is done.

    The answer has `record`, `seconds`, `machine` and `versions`, or why there is none in `traceback`: for what the user
    can mend, one sentence.
    """
    try:
        measure = import_module(order["module"]).measure  # imports torch, once
        started_s = now_s()
        for path, said in order["files"].items():
            _check_file(path, **said)
        with in_place(Settings(**order["settings"]), order["scenario"]) as settings:
            record = measure(settings, order["options"], on_progress=on_progress)
    except UserError as error:
        return {"digest": order["digest"], "traceback": str(error)}
    except Exception:  # noqa: BLE001  (it is kept, and the other jobs go on)
        return {"digest": order["digest"], "traceback": traceback.format_exc()}
    return {
        "digest": order["digest"],
        "record": record.to_json(),
        "seconds": now_s() - started_s,
        "machine": _machine(settings.device),
        "versions": _versions(),
    }


def file_of(path: str) -> File:
    """A file as it is now. Raises UserError when it cannot be read."""
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
    """Its bytes are read when its size or its time is another, as on another machine."""
    with suppress(OSError):  # which `file_of` says
        there = Path(path).stat()
        if (there.st_size, there.st_mtime_ns) == (size, modified_ns):
            return
    if file_of(path).sha256 != sha256:
        raise UserError(
            f"--data: {path} is not the same file as when this began; put that back, or begin again"
        )


@contextmanager
def in_place(settings: Settings, scenario: str | None) -> Iterator[Settings]:
    """Those of a job while the context lasts, in which the text of its scenario lies in a file; None has none."""
    if scenario is None:
        yield settings
        return
    with TemporaryDirectory(prefix="unstale-") as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(scenario, encoding="utf-8")
        named = settings.scenario.model_copy(update={"name": str(file)})
        yield settings.model_copy(update={"scenario": named})


def _machine(device: str) -> str:
    """`Linux x86_64, AMD EPYC 7763, 2 cores`"""
    words = [f"{platform.system()} {platform.machine()}", _processor(), f"{os.cpu_count()} cores"]
    if device.startswith("cuda"):
        import torch

        words.append(torch.cuda.get_device_name(device))
    return ", ".join(word for word in words if word)


@lru_cache(maxsize=1)
def _processor() -> str:
    """As it calls itself; on Linux `platform` does not know."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _versions() -> str:
    """Of what decides the bits. Without importing what the measurement did not."""
    torch = sys.modules.get("torch")
    computed = "" if torch is None else f", torch {torch.__version__}"
    return f"unstale {__version__}{computed}, Python {platform.python_version()}"


def give_memory_back() -> None:
    """To the system, what glibc keeps of a job that is over, because a little behind it is still needed: with GSGM's
    3,000 parked updates on EMNIST-MNIST some 15 GB, which other processes then lack."""
    collect()
    trim = getattr(CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)


class _Progress:
    """Tells the share of a job that is done, now and then."""

    def __init__(self, pipe: Pipe, digest: str) -> None:
        self._pipe = pipe
        self._digest = digest
        self._told = 0.0

    def __call__(self, share: float) -> None:
        if share >= self._told + SHARE_STEP:
            self._told = share
            say(self._pipe, {"digest": self._digest, "share": share})


def _listen(pipe: Pipe, orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    try:
        while True:
            orders.put(hear(pipe))
    except (EOFError, OSError):
        os._exit(0)  # whoever started this process is gone, or has no more use for it


def main(descriptor: int, *modules: str) -> None:
    pipe: Pipe = Connection(descriptor)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), name="orders", daemon=True).start()
    for module in modules:
        import_module(module)
    try:
        say(pipe, {"ready": 1})
        while True:
            order = orders.get()
            say(pipe, answer(order, _Progress(pipe, order["digest"])))
            give_memory_back()
    except (BrokenPipeError, ConnectionResetError):
        return  # as in `_listen`


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
