"""Toxics: faults of messages between clients and server, one in each file."""
