"""What is measured, and what each fact of a run adds to it. Pure: the services turn it into Prometheus."""
