"""Writes rows of updates in a thread of its own, while the server protocol handles the next messages."""

import threading
from queue import SimpleQueue

from unstale_client.disk import write_all

LARGE_BYTES = 64 * 1024  # less is written at once: handing it over takes as long
WRITER_CORES = 3  # fewest cores of a process with which the thread is worth its cost


class BackgroundWriter:
    """A `journal.segments.Writer`. The thread begins with the first large row, and ends with `close`."""

    def __init__(self) -> None:
        self._pieces: SimpleQueue[tuple[int, memoryview, int] | None] = SimpleQueue()
        self._results: SimpleQueue[OSError | None] = SimpleQueue()
        self._pending = 0
        self._thread: threading.Thread | None = None

    def write(self, file: int, data: memoryview, offset: int) -> None:
        """Write it there, by the next `wait` at the latest. Raises OSError when that is known at once."""
        if len(data) < LARGE_BYTES:
            write_all(file, data, offset)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rows", daemon=True)
            self._thread.start()
        self._pending += 1
        self._pieces.put((file, data, offset))

    def wait(self) -> None:
        """Wait until all rows are written. Raises OSError when one could not be."""
        failed: OSError | None = None
        while self._pending:
            failed = self._results.get() or failed
            self._pending -= 1
        if failed is not None:
            raise failed

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            failed: OSError | None = None
            try:
                write_all(*piece)
            except OSError as error:
                failed = error
            self._results.put(failed)
