"""Description of the measuring machine, for the head of a report."""

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
    """Machine, current load, versions, command and month, as a Markdown list. Call it before measuring."""
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
    """Build of Python: profile-guided builds are a fifth to a third faster."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "optimised with profiles" if "--enable-optimizations" in flags else "not optimised with profiles"


def memory_bytes() -> int:
    """Current resident memory of this process."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def processor_s(pid: int) -> float:
    """Processor time of a process, on all cores, including the kernel's."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_memory_bytes() -> int | None:
    """Peak resident memory of this process, or None where the system does not report it.

    Not `ru_maxrss`, which on Linux a child inherits from the process that started it.
    """
    status = Path("/proc/self/status")
    if sys.platform != "linux" or not status.exists():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="ascii"), re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def forget_peak_memory() -> None:
    """Reset the peak of the memory, where the system can (Linux)."""
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
