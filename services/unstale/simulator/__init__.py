"""A run in virtual time: the server's own coordinator and learner, with sockets, threads and clock played."""
