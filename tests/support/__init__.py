"""What tests with real sockets share: servers, clients that say what they are told to, and scrapes."""
