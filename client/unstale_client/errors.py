"""Errors of users. Peers' errors are `unstale_proto.errors.RemoteContractError`; bugs fail assertions."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """An error that a user can fix. The message is one sentence: the problem, the expected value, and the remedy."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'fedbuff'?"` for a name similar to a known one, else the list of known names."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; expected one of {', '.join(choices)}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name: `unknown policy 'fedbuf'; did you mean 'fedbuff'?`."""
    return UserError(f"unknown {kind} {name!r}{nearest(name, known)}")
