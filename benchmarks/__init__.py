"""Measurements of the promised speed and memory. `python -m benchmarks` runs all of them."""
