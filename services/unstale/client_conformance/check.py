"""A check of a client: its level, the section of PROTOCOL.md that has the rule, and the script of the server."""

from collections.abc import Callable
from dataclasses import dataclass

from unstale.client_conformance.peer import Peer

LEVELS = ("minimum", "chunks", "encodings", "outbox", "keys")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: str
    section: str  # of PROTOCOL.md
    rule: str
    script: Callable[[Peer], None]  # raises BrokenRuleError or NotApplicableError


CHECKS: dict[str, Check] = {}
"""By name, in the order of the report."""


def check(level: str, name: str, section: str, rule: str) -> Callable[[Callable[[Peer], None]], None]:
    """Register a script as a check."""

    def register(script: Callable[[Peer], None]) -> None:
        assert name not in CHECKS
        CHECKS[name] = Check(name, level, section, rule, script)

    return register
