"""Figures of processes and pages during an attack: memory, descriptors, log, answers over HTTP."""

import os
import threading
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from unstale_client.net.clock import now_s

PAGE_S = 5.0
SAMPLE_S = 0.1
PROBE_EVERY = 5  # samples


def memory_bytes(pid: int) -> int:
    """The memory of a process, and what its gateways have for themselves; 0 when it has ended."""
    gateways = (_memory_of(f"{child}/smaps_rollup", "Private_") for child in _with_children(pid)[1:])
    return _memory_of(f"{pid}/status", "VmRSS:") + sum(gateways)


def _memory_of(file: str, name: str) -> int:
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def descriptors(pid: int) -> int:
    """The open files and sockets of a process or one of its gateways, the most; 0 when it has ended."""
    return max(map(_descriptors, _with_children(pid)))


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _with_children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        lists = []
    return [pid, *(int(child) for children in lists for child in children.split())]


def page(address: str, path: str, timeout_s: float = PAGE_S) -> str | None:
    """A page over HTTP; None after a timeout. address: HOST:PORT."""
    try:
        with urlopen(f"http://{address}{path}", timeout=timeout_s) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, URLError, HTTPException):
        return None


def metric(address: str, name: str, **labels: str) -> float | None:
    """The value of a metric, 0 where there is none yet; None after a timeout."""
    text = page(address, "/metrics")
    if text is None:
        return None
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The maximum figures of a period.

    Attributes:
        memory_bytes: of the server.
        descriptors: of the server.
        health_s: of the answers of /healthz; the timeout for a missing one.
        health_missed: missing answers.
        health_asked: number of requests.
    """

    memory_bytes: int
    descriptors: int
    health_s: float
    health_missed: int
    health_asked: int


class Watch:
    """Samples a server within a context, in threads of its own."""

    def __init__(self, pid: int, http_address: str) -> None:
        self._pid = pid
        self._http_address = http_address
        self._memory_bytes = self._descriptors = 0
        self._health_s: list[float] = []
        self._missed = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._sample, self._probe)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def peak(self) -> Peak:
        return Peak(
            memory_bytes=self._memory_bytes,
            descriptors=self._descriptors,
            health_s=max(self._health_s, default=0.0),
            health_missed=self._missed,
            health_asked=len(self._health_s),
        )

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._memory_bytes = max(self._memory_bytes, memory_bytes(self._pid))
            self._descriptors = max(self._descriptors, descriptors(self._pid))

    def _probe(self) -> None:
        while not self._over.wait(PROBE_EVERY * SAMPLE_S):
            asked_s = now_s()
            self._missed += page(self._http_address, "/healthz") is None
            self._health_s.append(now_s() - asked_s)
