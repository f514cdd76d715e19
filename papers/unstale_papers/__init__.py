"""The published tables and figures, computed again: presets, jobs that can be stopped, and what came of them."""
