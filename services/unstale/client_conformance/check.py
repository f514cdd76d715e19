"""A check of a client: its level, the section of PROTOCOL.md that has the rule, and the script of the server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstale.client_conformance.peer import Peer

LEVELS = ("minimum", "chunks", "encodings", "outbox", "keys")


class BrokenRuleError(Exception):
    """The client broke the rule of the running check. The message says what was expected, and what came."""


class NotApplicableError(Exception):
    """The client does not have the examined feature, which is optional. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: str
    section: str  # of PROTOCOL.md
    rule: str
    script: Callable[["Peer"], None]  # raises BrokenRuleError or NotApplicableError


CHECKS: dict[str, Check] = {}
"""By name, in the order of the report."""


def check(level: str, name: str, section: str, rule: str) -> Callable[[Callable[["Peer"], None]], None]:
    """Register a script as a check."""

    def register(script: Callable[["Peer"], None]) -> None:
        assert name not in CHECKS
        CHECKS[name] = Check(name, level, section, rule, script)

    return register


def require(holds: bool, expected: str, came: object) -> None:
    """Raise BrokenRuleError unless the condition holds."""
    if not holds:
        raise BrokenRuleError(f"expected {expected}, got {came}")
