"""A seeded swarm: server, injector and clients as pure parts, with a played network, clock and computation."""
