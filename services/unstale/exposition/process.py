"""What a process says of itself: what it is made of, and what it takes of the machine."""

import platform
from importlib.metadata import version

from prometheus_client import ProcessCollector

from unstale.exposition.instruments import Instruments
from unstale.metrics import catalogue
from unstale.metrics.observe import Observation


def describe(instruments: Instruments) -> None:
    """Add versions, and what Prometheus' client tells of processes: processor time, memory, open files and when it
    started (`process_…`; on Linux alone)."""
    instruments.record(build())
    ProcessCollector(registry=instruments.registry)


def build() -> Observation:
    """What this process is made of."""
    return Observation(
        catalogue.BUILD_INFO, 1, (version("unstale"), platform.python_version(), version("torch"))
    )
