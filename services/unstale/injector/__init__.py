"""The injector: a proxy that applies the toxics of a scenario to messages."""
