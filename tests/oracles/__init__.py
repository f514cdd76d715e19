"""Slow, obvious second versions of every aggregation policy, in float64, from docs/methods and from no other code."""
