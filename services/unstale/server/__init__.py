"""The server process: sockets, threads and HTTP around the coordinator and the learner."""
