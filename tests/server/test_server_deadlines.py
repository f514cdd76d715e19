"""Tasks that are not answered in time, and tasks that are reported as lost repeatedly."""

from support.played import PlayedServer
from support.wire import update_of
from unstale.server.delivery import LOST_MAX
from unstale.server.state import TransferBounds
from unstale.settings.learning import TriggerSettings
from unstale_proto.messages import Ack, Chunk, Task
from unstale_proto.transfer import checksum

SYNC = TriggerSettings(name="sync")
ONES = memoryview(b"\x00\x00\x80\x3f" * 2)


def test_a_round_of_all_continues_without_a_client_that_only_sends_heartbeats() -> None:
    server = PlayedServer(2, trigger=SYNC, task_timeout_s=25.0)
    silent, honest = server.client(0), server.client(1)
    silent.join()
    honest.join()
    task = honest.hears()[-1]
    assert isinstance(task, Task)
    assert honest.answer(task).outcome == "accepted"
    while server.now_s < 24.0:
        server.pass_time(3.0)
        silent.beat()
        honest.beat()
    assert server.coordinator.version == 0
    assert server.protocol.due_s == 25.0
    server.pass_time(1.0)
    server.compute()
    assert server.coordinator.version == 1
    assert not [message for message in silent.hears() if isinstance(message, Task) and message.version]
    assert isinstance(honest.hears()[-1], Task)


def test_without_a_timeout_a_task_is_awaited_for_ever() -> None:
    server = PlayedServer(1)
    client = server.client(0)
    task = client.task()
    for _ in range(100):
        server.pass_time(9.0)
        client.beat(newest_task=task.task_id)
    assert client.answer(task).outcome == "accepted"


def test_an_update_that_comes_is_an_answer_as_long_as_it_moves() -> None:
    bounds = TransferBounds(chunk_bytes=2, window_bytes=8, places=1)
    for moves in (True, False):
        server = PlayedServer(1, task_timeout_s=5.0, transfers=bounds)
        client = server.client(0)
        task = client.task()
        client.say(update_of(task, checksum=checksum([ONES])))
        for start in range(0, 6, 2):
            server.pass_time(7.0)
            if moves:
                client.say(Chunk(task_id=task.task_id, offset=start), [ONES[start : start + 2]])
            else:
                client.beat()
        assert server.coordinator.awaits(0, task.task_id) is moves


def test_a_client_that_claims_lost_tasks_endlessly_gets_few() -> None:
    server = PlayedServer(2, trigger=TriggerSettings(name="async"))
    hostile, honest = server.client(0), server.client(1)
    hostile.join()
    honest.join()
    heard = None
    given = 0
    for number in range(10 * LOST_MAX):
        given += sum(isinstance(message, Task) for message in hostile.beat(newest_task=0, heard=heard))
        heard = number
    assert given <= LOST_MAX + 1
    task = honest.hears()[-1]
    assert isinstance(task, Task)
    honest.say_update(task)
    assert isinstance(honest.hears()[0], Ack)
