"""A process that hosts many clients keeps one copy of a version, for any number of tasks on it."""

import gc
import weakref

import pytest

from support.idle_worker import IdleWorker
from support.wire import welcome
from unstale_client.actions import Train
from unstale_client.loop import ClientLoop
from unstale_proto.messages import Task


def train(task_id: int, version: int) -> Train:
    task = Task(task_id=task_id, number=0, version=version, learning_rate=0.1, signature="0" * 64, payload_bytes=8)
    return Train(welcome=welcome(), task=task, parcel=[memoryview(bytes(8))])


@pytest.mark.network
def test_jobs_on_one_version_share_its_model_and_the_last_one_releases_it() -> None:
    process = ClientLoop(
        server="tcp://127.0.0.1:9", client_ids=range(2), worker=IdleWorker, heartbeat_s=60.0, linger_s=0.0
    )
    sessions = [client.session for client in process._clients.values()]
    jobs = [process._job(session, train(task_id, 3)) for task_id, session in enumerate(sessions, start=1)]
    newer = process._job(sessions[0], train(3, 4))
    assert jobs[0].model is jobs[1].model
    assert newer.model is not jobs[0].model
    model = weakref.ref(jobs[0].model)
    jobs.clear()
    gc.collect()
    assert model() is None
    process.stop()
    process.run()  # ends at once, and closes its sockets
