"""What a figure was measured on, for the head of a report."""

import os
import platform
import re
import sys
import sysconfig
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import zmq

PACKAGES = ("torch", "numpy", "pyzmq", "msgpack", "pydantic")


def month() -> str:
    """The current month, as `202611`."""
    return datetime.now().astimezone().strftime("%Y%m")


def hardware() -> str:
    """The processor and its cores as part of a file's name: `amd-epyc-2-cores`."""
    return re.sub(r"[^a-z0-9]+", "-", f"{_processor()} {os.cpu_count()} cores".lower()).strip("-")


def description(command: str) -> str:
    """Machine, load, versions, command and month, as a Markdown list. Call it before measuring: load is of now."""
    load = ", ".join(f"{value:.1f}" for value in psutil.getloadavg())
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        (
            f"- machine: {_processor()}, {os.cpu_count()} cores, "
            f"{psutil.virtual_memory().total / 2**30:.0f} GiB memory, {platform.system()} {platform.machine()}",
            f"- load when started (1, 5, 15 minutes): {load}",
            f"- versions: Python {platform.python_version()} ({_build()}), {versions}, libzmq {zmq.zmq_version()}",
            f"- command: `{command}`",
            f"- month: {month()[:4]}-{month()[4:]}",
        )
    )


def _build() -> str:
    """How Python was compiled: with profiles it runs a fifth to a third faster."""
    told = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "optimised with profiles" if "--enable-optimizations" in told else "not optimised with profiles"


def memory_bytes() -> int:
    """Memory that this process has now (resident)."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def processor_s(pid: int) -> float:
    """Processor time that a process has used so far, on all cores, in the kernel too."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_memory_bytes() -> int | None:
    """Most memory that this process has had at a time (resident), or None where the system does not say.

    Not `ru_maxrss`, which on Linux a child inherits from the process that started it.
    """
    status = Path("/proc/self/status")
    if sys.platform != "linux" or not status.exists():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="ascii"), re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def forget_peak_memory() -> None:
    """Begin to look for the most memory anew, where the system can (Linux)."""
    peaks = Path("/proc/self/clear_refs")
    if sys.platform == "linux" and peaks.exists():
        peaks.write_text("5", encoding="ascii")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
        if found is not None:
            return found[1].strip()
    return platform.processor() or platform.machine()
