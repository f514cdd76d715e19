"""What a check raises: a broken rule, or a feature that the client does not have."""


class BrokenRuleError(Exception):
    """The client broke the rule of the running check. The message says what was expected, and what came."""


class NotApplicableError(Exception):
    """The client does not have the examined feature, which is optional. The message is the reason."""


def require(holds: bool, expected: str, came: object) -> None:
    """Raise BrokenRuleError unless the condition holds."""
    if not holds:
        raise BrokenRuleError(f"expected {expected}, got {came}")
