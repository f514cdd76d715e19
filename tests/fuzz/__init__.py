"""Fuzzing: generated inputs, stored when they reach new facts. README.md describes the commands."""
