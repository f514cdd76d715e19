"""Prints the figures of the attacks at the end of the tests."""

import pytest

ATTACKS = "attacks"
"""Property of a test: its lines of the table, for passed and failed tests in any process."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, lines in report.user_properties:
                if name == ATTACKS:
                    for line in lines:
                        terminalreporter.write_line(line)
