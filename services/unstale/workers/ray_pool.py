"""A worker pool on a Ray cluster, from the side of the process that submits. It does not import Ray."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from unstale.errors import UserError
from unstale.workers.pool import Pool

DRIVER = "unstale.workers.ray_driver"  # named, not imported: it imports Ray
FRAME_S = 10  # after which a driver hangs that neither reads nor writes the rest of a frame
END_S = 10.0  # Ray ends a cluster of its own in one or two
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then listens on 127.0.0.1 alone, on any system
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0"}  # to Ray's makers


@dataclass(frozen=True, slots=True, kw_only=True)
class RayStart:
    """How a cluster is used.

    key: Setting of the address, for error messages.
    program: As of `unstale.workers.program.described`.
    cpus, gpus: Of each task.
    advice: Ends the error message for a cluster without these.
    attempts: Of a task whose worker fails.
    task_s: Seconds without any result after which all tasks are tried again; None for no limit.
    reuses_gpus: A worker may compute several tasks, each on another GPU: the program chooses the device.
    """

    address: str
    key: str
    program: str
    cpus: int
    gpus: float
    advice: str
    attempts: int = 1
    task_s: float | None = None
    reuses_gpus: bool = False


def start(options: RayStart) -> Pool:
    """Start the process that connects to the cluster.

    Raises:
        UserError: Ray is not installed.
        OSError: The process does not start.
    """
    if find_spec("ray") is None:
        raise UserError(
            f"{options.key} is {options.address!r}, but Ray is not installed; install it with pip install "
            "'unstale[ray]'"
        )
    return Pool(
        DRIVER,
        json.dumps(asdict(options)),
        environment=_environment(options.address),
        why_lost=f"the Ray cluster {options.address} is gone",
        end_s=END_S,
        frame_s=FRAME_S,
    )


def _environment(address: str) -> Mapping[str, str]:
    variables = NO_REPORTS | (LOOPBACK if address == "local" else {})
    return {name: value for name, value in variables.items() if name not in os.environ}
