"""Prints the figures of the attacks at the end of the tests."""

import pytest

ATTACKS = "attacks"
"""Property of a test: lines of the table, whether or not it passed, and in whichever process it ran."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, lines in report.user_properties:
                if name == ATTACKS:
                    for line in lines:
                        terminalreporter.write_line(line)
