"""The wire contract of unstale, for Python. PROTOCOL.md beside this package says it for every language."""
