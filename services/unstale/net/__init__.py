"""The server's side of the network: connection limits, authorized keys, HTTP."""
