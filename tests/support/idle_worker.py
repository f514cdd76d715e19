"""A worker that trains nothing, for tests of the client's loop."""

from collections.abc import Callable

from unstale_client.jobs import Job, Result, Settlement


class IdleWorker:
    """Records what is submitted; the test posts results by `post`."""

    def __init__(self, post: Callable[[Result], None]) -> None:
        self.post = post
        self.submitted: list[Job | Settlement] = []

    def start(self) -> None:
        pass

    def submit(self, job: Job | Settlement) -> None:
        self.submitted.append(job)

    def close(self) -> None:
        pass
