"""Errors of users and workers. Peers' errors are `unstale_proto.errors.RemoteContractError`; bugs fail assertions."""

from unstale_client.errors import UserError, nearest, unknown_name

__all__ = ["HangingError", "UserError", "WorkerLostError", "nearest", "unknown_name"]


class HangingError(UserError):
    """A function of the user does not end, so that the process has to."""


class WorkerLostError(Exception):
    """A worker process has ended or cannot compute a task. The message is the reason."""
