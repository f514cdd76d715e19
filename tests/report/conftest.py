"""Fixtures for a real browser."""

from support.browser import browser, look

__all__ = ["browser", "look"]
