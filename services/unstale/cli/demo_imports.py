"""Imports all that the processes of `unstale demo` need."""

from unstale.imports import imports

with imports():
    import unstale.cli.main
    import unstale.client.service
    import unstale.client.workspace
    import unstale.injector.service
    import unstale.server.service  # noqa: F401
