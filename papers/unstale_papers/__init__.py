"""The published tables and figures, computed again: presets, jobs that can be stopped, and results."""
