"""ZeroMQ sockets with every option said, the one clock, and a mailbox between threads."""
