"""Sockets with their limits and keys, the clock, and a queue between threads."""
