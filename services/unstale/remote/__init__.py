"""Inversions on a Ray cluster: the side of the run, a courier process beside it, and what a worker does."""
