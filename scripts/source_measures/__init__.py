"""Measurements of source that need only its text: nothing is imported or executed."""
