"""Metrics as Prometheus reads them: numbers of the catalogue, what a process is, and the HTTP that serves both."""
