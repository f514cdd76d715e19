"""The injector: messages between clients and server, on real connections, through the toxics of a scenario."""
