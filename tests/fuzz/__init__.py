"""Inputs that nobody would think of, kept when they reach something new: README.md says how to run it."""
