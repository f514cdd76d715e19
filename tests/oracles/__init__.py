"""Slow, obvious second versions of every aggregation policy, in float64, from algorithms.md and from no other code."""
