"""A seeded swarm: server, injector and clients as pure parts, with a simulated network, clock and computation."""
