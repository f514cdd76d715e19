"""Fixtures for the status page in a real browser."""

from support.browser import browser, look

__all__ = ["browser", "look"]
