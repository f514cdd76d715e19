"""Tells what was killed, at the end of the tests."""

import pytest

from crash.attempt import TOLD


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seed and the table, whether or not the tests passed."""
    if TOLD:
        terminalreporter.section("processes killed")
        for line in TOLD:
            terminalreporter.write_line(line)
