"""What is promised about speed and memory, measured. `python -m benchmarks` runs all of them."""
