"""Version of unstale."""

__version__ = "0.1.0"
