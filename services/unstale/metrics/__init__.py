"""The catalogue of metrics, the values that each fact of a run adds, and their exposition to Prometheus."""
