"""What can be set, where it is read from, and the parts that are made from it."""

from unstale.config.load import Given, load
from unstale.config.settings import Settings

__all__ = ["Given", "Settings", "load"]
