"""The wire contract of unstale in Python. PROTOCOL.md describes it for every language."""
