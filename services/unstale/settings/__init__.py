"""The settings of a run's parts, each declared once: default, bounds, unit, description and source. No torch."""
