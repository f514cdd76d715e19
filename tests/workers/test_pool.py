"""A pool of one local process: results, progress, and the end of either side."""

import os
import signal
import threading
from pathlib import Path

import pytest

from unstale.errors import UserError, WorkerLostError
from unstale.workers import pool
from unstale.workers.program import Compute, Progress

PATIENCE_S = 60.0


def begin(settings: dict[str, str]) -> Compute:
    """A program that appends its word; `sleep` never ends, `fail` raises."""
    if settings["word"] == "no":
        raise UserError("this word is not possible")

    def compute(content: bytes, on_progress: Progress) -> bytes:
        on_progress(0.5)
        on_progress(0.501)
        if content == b"sleep":
            threading.Event().wait()
        if content == b"fail":
            raise ZeroDivisionError
        return content + settings["word"].encode()

    return compute


def started(word: str = "!") -> pool.Pool:
    return pool.local("workers.test_pool:begin", {"word": word})


def test_tasks_are_computed_in_order_with_their_progress() -> None:
    workers = started()
    shares: list[float] = []
    futures = [workers.submit(content, shares.append) for content in (b"one", b"two")]
    assert [future.result(PATIENCE_S) for future in futures] == [b"one!", b"two!"]
    assert shares == [0.5, 0.5], "small steps are not reported"
    assert workers.capacity == 1
    workers.close()


def test_a_refusal_fails_ready_and_loses_tasks() -> None:
    workers = started("no")
    with pytest.raises(UserError, match=r"^this word is not possible$"):
        workers.ready.result(PATIENCE_S)
    with pytest.raises(WorkerLostError, match=r"^this word is not possible$"):
        workers.submit(b"one").result(PATIENCE_S)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"fail", "its process ended with exit code 1"),
        (b"sleep", "its process was ended by signal 9, perhaps for want of memory"),
    ],
)
def test_the_end_of_the_process_loses_tasks_now_and_later(content: bytes, why: str) -> None:
    workers = started()
    workers.ready.result(PATIENCE_S)
    future = workers.submit(content)
    if content == b"sleep":
        os.kill(workers._process.pid, signal.SIGKILL)
    for lost in (future, workers.submit(b"later")):
        with pytest.raises(WorkerLostError) as caught:
            lost.result(PATIENCE_S)
        assert str(caught.value) == why
    assert workers.why_ended == why


def test_close_ends_a_task() -> None:
    workers = started()
    workers.ready.result(PATIENCE_S)
    workers.submit(b"sleep")
    workers.close()
    workers.close()
    assert workers.exit_code() == -signal.SIGKILL


def test_the_process_ends_with_the_socket_during_a_task() -> None:
    workers = started()
    workers.ready.result(PATIENCE_S)
    future = workers.submit(b"sleep")
    workers.stop("enough")
    assert workers.exit_code() == 0
    with pytest.raises(WorkerLostError, match=r"^enough$"):
        future.result(PATIENCE_S)


def test_the_process_imports_the_modules_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def begin(settings):\n    return lambda content, on_progress: b'mine'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    workers = pool.local("mine:begin", {})
    assert workers.submit(b"").result(PATIENCE_S) == b"mine"
    workers.close()
