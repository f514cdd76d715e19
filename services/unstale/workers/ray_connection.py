"""Connects this process to a Ray cluster, and describes Ray's errors."""

import logging
import socket
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from unstale.errors import UserError

CONNECT_S = 5.0  # Ray itself would try for two minutes
STORE_BYTES = 256 * 2**20  # object memory of a cluster that is started here; the rest goes to disk


def connect(address: str, *, key: str) -> None:
    """Connect this process. key: setting of the address.

    Raises:
        UserError: There is no such cluster.
    """
    options: dict[str, Any] = {"address": address}
    if address == "local":
        options |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    elif address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{key} is {address!r}, but nothing answers there ({error}), expected the head of a Ray cluster; start "
                "one with `ray start --head`, or use local"
            ) from None
    try:
        ray.init(log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # noqa: BLE001  (Ray raises plain ones, too)
        raise UserError(
            f"{key} is {address!r}, but Ray cannot connect ({_first_sentence(error)}), expected a cluster that runs; "
            "start one with `ray start --head`, or use local"
        ) from None


def cause(error: RayError) -> str:
    """Return the cause of a failed task, one line."""
    if not isinstance(error, RayTaskError):
        return _first_sentence(error) or type(error).__name__
    if isinstance(error.cause, UserError):
        return str(error.cause)
    return f"{type(error.cause).__name__}: {_first_sentence(error.cause)}"


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
