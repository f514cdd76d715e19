"""Prints at the end of the tests which images the quickstart of PyTorch has learned."""

import pytest

from flower.environments import images


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    if any("quickstart" in report.nodeid for report in reports):
        terminalreporter.write_line(f"images of Flower's quickstart: {images() or 'generated'}")
