"""Where and how the work of simulated clients is computed. The simulator knows the interface only."""
