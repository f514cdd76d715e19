"""Examines a client in any language: a scripted server with faults, and a report of the broken rules."""
