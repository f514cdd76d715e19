"""Monitoring of a run: Prometheus' rules, Grafana's dashboards, and generators of their files."""
