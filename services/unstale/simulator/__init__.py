"""A simulated run: the server's own coordinator and learner, without sockets and threads, in virtual time."""
