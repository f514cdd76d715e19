"""Metrics of a process: its versions and its use of the machine."""

import platform
from importlib.metadata import version

from prometheus_client import ProcessCollector

from unstale.metrics import catalogue
from unstale.metrics.instruments import Instruments
from unstale.metrics.observe import Observation


def describe(instruments: Instruments) -> None:
    """Add versions, and the `process_…` metrics of Prometheus' client: processor time, memory, open files and time of
    the start. The latter only on Linux.
    """
    instruments.record(build())
    ProcessCollector(registry=instruments.registry)


def build() -> Observation:
    """The versions of this process."""
    return Observation(catalogue.BUILD_INFO, 1, (version("unstale"), platform.python_version(), version("torch")))
