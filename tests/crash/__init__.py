"""Crash tests: real processes over real sockets and files are killed, and nothing that was acknowledged may be lost.

A run is a server, an injector that drops, repeats and reorders, and clients: the commands that users start, given the
same arguments again after each SIGKILL. `plan` draws what the run is and when its processes die, `play` carries it out,
`tap` listens between injector and server, and `books` compares what was said there, what the server stored, and the
same arrivals computed once more without any crash.

A process dies at a random instant, or exactly at a place in the code (`places`): between the row and the commit,
between the commit and the ack, half-way through a checkpoint. It is a process of its own, forked from one that has
imported PyTorch and done nothing else (`multiprocessing`'s fork server): a test cannot wait 3 s for every start.

The seed decides the plan and not the timing: a failure need not come again, so the folder of a run that failed stays.
"""
