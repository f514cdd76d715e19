"""ZeroMQ sockets with every option said, the one clock, and a queue between threads."""
