"""Fixtures for pages in a real browser."""

from support.browser import browser, look

__all__ = ["browser", "look"]
