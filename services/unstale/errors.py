"""Errors of users and workers. Peers' errors are `unstale_proto.errors.RemoteContractError`; bugs fail assertions."""

from unstale_client.errors import UserError, nearest, unknown_name

__all__ = ["UserError", "WorkerLostError", "nearest", "unknown_name"]


class WorkerLostError(Exception):
    """A worker process has ended or cannot compute a task. The message is the reason."""
