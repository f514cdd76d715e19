"""The server's sockets, in its own process or in gateway processes, behind one interface."""
