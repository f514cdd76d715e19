"""Mistakes of the person who configures a run, each told in one sentence.

A peer's mistake is a `RemoteContractError` of `unstale_proto`; our own is an `assert`.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A user's mistake. The text is one sentence: what was wrong, what was expected, what to do."""


class WorkerLostError(Exception):
    """Another process has no result for a task. The text says why."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'fedbuff'?"` for a name close to a known one, else the list of what there is."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; expected one of {', '.join(choices)}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is registered nowhere: `unknown policy 'fedbuf'; did you mean 'fedbuff'?`."""
    return UserError(f"unknown {kind} {name!r}{nearest(name, known)}")
