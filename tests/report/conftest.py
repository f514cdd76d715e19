"""A report is looked at in a real browser, too."""

from support.browser import browser, look

__all__ = ["browser", "look"]
