"""What is promised about speed and memory (design.md section 11), measured. `python -m benchmarks` runs all of them."""
