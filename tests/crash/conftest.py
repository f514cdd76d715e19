"""Prints the killed processes at the end of the tests."""

import pytest

KILLED = "processes killed"
"""Property of a test: lines for the summary, for any outcome and process."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seed and the table."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, lines in report.user_properties:
                if name == KILLED:
                    terminalreporter.section(KILLED)
                    for line in lines:
                        terminalreporter.write_line(line)
