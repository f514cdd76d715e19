"""What watches a run: Prometheus' rules, Grafana's dashboards, and what makes their files."""
