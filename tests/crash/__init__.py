"""Crash tests: real processes over real sockets and files are killed, and no acknowledged update may be lost.

A run is a server, an injector that drops, repeats and reorders, and clients: the commands that users start, restarted
with the same arguments after each SIGKILL. `plan` draws the run and the deaths of its processes, `play` executes it,
`tap` records the messages between injector and server, and `checks` compares them, the stored run, and the same
arrivals computed again without crashes.

A process dies at a random instant, or exactly at a place in the code (`places`): between the row and the commit,
between the commit and the ack, half-way through a checkpoint. It is forked from one that has only imported PyTorch
(`multiprocessing`'s fork server), which saves 3 s per start.

The seed determines the plan and not the timing: a failure may not recur, so the folder of a failed run is kept.
"""
