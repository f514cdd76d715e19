"""Updates and models in chunks, sentence by sentence, with a played network and clock. Source: PROTOCOL.md 4.7.

The model has two parameters, 8 bytes; chunks have 2 bytes and a window 4.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.played import PlayedClient, PlayedServer
from support.wire import update_of
from unstale.server.client_limits import ClientLimits
from unstale.server.state import TransferBounds
from unstale.settings.learning import TriggerSettings
from unstale_client.partial_files import PartialFiles
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Chunk, Credit, Error, Task, Update, Welcome
from unstale_proto.transfer import checksum

BOUNDS = TransferBounds(chunk_bytes=2, window_bytes=4, places=1, parts_max=2, versions=1)
ONES = np.ones(2, dtype="<f4").tobytes()


def server_of(clients: int = 1, bounds: TransferBounds = BOUNDS, **options: Any) -> PlayedServer:
    return PlayedServer(clients, transfers=bounds, **options)


def credit(task: Task, have: int, until: int, again: bool | None = None) -> Credit:
    return Credit(task_id=task.task_id, have=have, until=until, again=again)


def announced(task: Task, payload: bytes = ONES, **changes: Any) -> Update:
    return update_of(task, **{"checksum": checksum([memoryview(payload)]), **changes})


def say_chunk(client: PlayedClient, task: Task, start: int, end: int, payload: bytes = ONES) -> None:
    client.say(Chunk(task_id=task.task_id, offset=start), [memoryview(payload)[start:end]])


def send_all(client: PlayedClient, task: Task, payload: bytes = ONES) -> None:
    for start in range(0, len(payload), 2):
        say_chunk(client, task, start, start + 2, payload)


def tasks_of(*clients: PlayedClient) -> list[Task]:
    """All of them join; the first task of each."""
    for client in clients:
        client.join()
    tasks = [client.hears()[-1] for client in clients]
    assert all(isinstance(task, Task) for task in tasks)
    return [task for task in tasks if isinstance(task, Task)]


def counted(server: PlayedServer, name: str, *labels: str) -> float:
    """The last value of a gauge, or the total of a counter."""
    found = [one for one in server.observed if one.metric.name == name and one.labels == labels]
    if name.endswith("_total"):
        return sum(one.value for one in found)
    return found[-1].value


# ------------------------------------------------------------------------------------------------------------ an update


def test_an_announced_update_is_asked_for_and_judged_when_it_is_whole() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 0, 4, again=True)
    say_chunk(client, task, 0, 2)
    assert client.hears() == []
    say_chunk(client, task, 2, 4)
    assert client.hear(Credit) == credit(task, 4, 8)
    say_chunk(client, task, 4, 6)
    assert client.hears() == []
    say_chunk(client, task, 6, 8)
    assert client.hear(Ack).outcome == "accepted"
    assert server.coordinator.accepted == 1
    assert counted(server, "unstale_update_bytes_total", "received") == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task_id": 2}, Reason.UNKNOWN_TASK),
        ({"signature": "1" * 64}, Reason.WRONG_SIGNATURE),
        ({"payload_bytes": 16}, Reason.WRONG_SIZE),
        ({"base_version": 1}, Reason.UNKNOWN_VERSION),
        ({"checksum": None}, Reason.WRONG_SIZE),  # not announced, and it brings nothing
    ],
)
def test_a_verdict_that_needs_no_payload_comes_at_once(changes: dict[str, Any], reason: Reason) -> None:
    client = server_of().client(0)
    client.say(announced(client.task(), **changes))
    assert client.hear(Ack).reason is reason


def test_a_repeated_announcement_after_the_verdict_gets_the_first_verdict() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task))
    send_all(client, task)
    client.hears()
    client.say(announced(task))
    ack = client.hear(Ack)
    assert (ack.outcome, ack.first_outcome) == ("duplicate", "accepted")


def test_an_update_that_arrives_whole_is_accepted_whole() -> None:
    client = server_of().client(0)
    assert client.answer(client.task()).outcome == "accepted"


def test_a_repeated_announcement_is_answered_from_the_current_state() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task))
    say_chunk(client, task, 0, 2)
    client.hears()
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 2, 6, again=True)


def test_a_doubled_announcement_is_answered_once() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task))
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 0, 4, again=True)
    send_all(client, task)
    assert [message.type for message in client.hears()] == ["credit", "ack"]


def test_an_announcement_that_crosses_the_credit_for_its_place_is_not_answered() -> None:
    server = server_of(2)
    client, other = server.client(0), server.client(1)
    task, of_other = tasks_of(client, other)
    other.say(announced(of_other))
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 0, 0, again=True)  # it waits
    client.beat(newest_task=task.task_id)
    send_all(other, of_other)
    assert client.hear(Credit) == credit(task, 0, 4, again=True)  # its turn
    client.say(announced(task))  # it left before the credit arrived
    assert client.hears() == []


@pytest.mark.parametrize("proof", ["heartbeat", "hello"])
def test_an_announcement_after_the_proof_of_a_loss_is_answered(proof: str) -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 0, 4, again=True)
    if proof == "heartbeat":
        client.beat(newest_task=task.task_id)
    else:
        client.join(holding=(task.task_id,))
        client.hear(Welcome)
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 0, 4, again=True)


def test_a_new_connection_resumes_the_transfer_of_the_former_one() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    say_chunk(client, task, 0, 2)
    newer = server.client(0, route=b"newer")
    newer.join(holding=(task.task_id,))
    newer.hear(Welcome)
    newer.say(announced(task))
    assert newer.hear(Credit) == credit(task, 2, 6, again=True)
    assert counted(server, "unstale_transfer_resumes_total", "received") == 1
    for start in (2, 4, 6):
        say_chunk(newer, task, start, start + 2)
    assert newer.hears()[-1].type == "ack"


def test_a_lost_chunk_is_asked_for_again() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task))
    client.hears()
    say_chunk(client, task, 2, 4)
    assert client.hear(Credit) == credit(task, 0, 4, again=True)


def test_a_chunk_beyond_the_credit_is_refused_and_counted_and_blames_no_client() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    client.hears()
    say_chunk(client, task, 0, 6)
    assert client.hear(Error).reason is Reason.NO_CREDIT
    assert counted(server, "unstale_messages_refused_total", "no-credit") == 1
    client.say(announced(task))
    assert client.hear(Credit).have == 0


def test_a_chunk_of_nothing_that_was_announced_is_refused() -> None:
    client = server_of().client(0)
    task = client.task()
    say_chunk(client, task, 0, 2)
    assert client.hear(Error).reason is Reason.NO_CREDIT


def test_a_damaged_update_comes_again_and_is_refused_the_third_time() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    client.hears()
    for _ in range(2):
        send_all(client, task, bytes(8))
        assert client.hears()[-1] == credit(task, 0, 4, again=True)
    send_all(client, task, bytes(8))
    *_, ack = client.hears()
    assert isinstance(ack, Ack) and ack.reason is Reason.WRONG_CHECKSUM
    assert counted(server, "unstale_messages_refused_total", "wrong-checksum") == 2


def test_chunks_are_signs_of_life() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    for start in range(0, 6, 2):
        server.pass_time(9.0)  # of a lease of 10
        say_chunk(client, task, start, start + 2)
    assert server.coordinator.is_active(0)


def test_the_checksum_of_an_update_that_arrives_whole_is_verified() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(announced(task, checksum="0" * 16), [memoryview(ONES)])
    ack = client.hears()[0]
    assert isinstance(ack, Ack) and ack.reason is Reason.WRONG_CHECKSUM
    right = server_of().client(0)
    task = right.task()
    right.say(announced(task), [memoryview(ONES)])
    assert right.hear(Ack).outcome == "accepted"


def test_only_chunks_that_bring_what_was_asked_for_cost_nothing() -> None:
    bounds = TransferBounds(chunk_bytes=4, window_bytes=8, places=1)
    server = server_of(1, bounds, client_limits=ClientLimits(client_messages_per_s_max=2))  # four at once
    client = server.client(0)
    task = client.task()
    client.say(announced(task))  # the first
    client.hears()
    say_chunk(client, task, 0, 4)
    for _ in range(3):
        say_chunk(client, task, 0, 4)  # it was there
    assert not [message for message in client.hears() if isinstance(message, Error)]
    say_chunk(client, task, 4, 8)
    assert client.hear(Error).reason is Reason.RATE_LIMITED
    server.pass_time(1.0)
    say_chunk(client, task, 4, 8)
    assert client.hears()[-1].type == "ack"


def test_chunks_that_are_too_short_cost_a_message_each() -> None:
    bounds = TransferBounds(chunk_bytes=4, window_bytes=8, places=1)
    server = server_of(1, bounds, client_limits=ClientLimits(client_messages_per_s_max=2))
    client = server.client(0)
    task = client.task()
    client.say(announced(task))
    client.hears()
    for start in range(3):
        say_chunk(client, task, start, start + 1)
    assert not [message for message in client.hears() if isinstance(message, Error)]
    say_chunk(client, task, 3, 4)
    assert client.hear(Error).reason is Reason.RATE_LIMITED


# --------------------------------------------------------------------------------------------------------------- places


def two_at_work(bounds: TransferBounds = BOUNDS) -> tuple[PlayedServer, PlayedClient, Task, PlayedClient, Task]:
    """The first has the only place, and the second waits."""
    server = server_of(2, bounds)
    first, second = server.client(0), server.client(1)
    of_first, of_second = tasks_of(first, second)
    first.say(announced(of_first))
    second.say(announced(of_second))
    first.hears()
    assert second.hear(Credit) == credit(of_second, 0, 0, again=True)
    return server, first, of_first, second, of_second


def test_a_waiting_client_is_notified_when_the_place_is_free() -> None:
    server, first, of_first, second, of_second = two_at_work()
    assert counted(server, "unstale_transfers", "received", "active") == 1
    assert counted(server, "unstale_transfers", "received", "waiting") == 1
    send_all(first, of_first)
    assert first.hears()[-1].type in ("ack", "task")
    assert second.hear(Credit) == credit(of_second, 0, 4, again=True)


def test_a_client_that_leaves_releases_its_place() -> None:
    server, _, of_first, second, of_second = two_at_work()
    server.client(0, route=b"newer").join(holding=(of_first.task_id,))
    server.protocol.flush()
    assert second.hear(Credit) == credit(of_second, 0, 4, again=True)


def test_a_stalled_upload_that_others_wait_for_loses_its_place_and_keeps_its_part() -> None:
    server, first, of_first, second, of_second = two_at_work()
    say_chunk(first, of_first, 0, 2)
    first.hears()
    server.pass_time(5.0)
    first.beat()
    second.beat()
    assert server.protocol.due_s is not None and server.protocol.due_s <= 10.0
    server.pass_time(5.0)
    assert first.hears()[-1] == credit(of_first, 2, 2, again=True)
    assert second.hears()[-1] == credit(of_second, 0, 4, again=True)
    say_chunk(first, of_first, 2, 4)  # was under way, and is kept
    assert first.hears() == []
    send_all(second, of_second)
    assert first.hear(Credit) == credit(of_first, 4, 8, again=True)


def test_a_revoked_task_releases_its_place() -> None:
    server, _, _, second, of_second = two_at_work()
    server.pass_time(6.0)
    second.beat()
    server.pass_time(6.0)  # the first one's lease has run out
    assert second.hears()[-1] == credit(of_second, 0, 4, again=True)


def test_no_place_is_granted_while_a_round_is_computed_and_the_next_is_complete() -> None:
    server = server_of(3, trigger=TriggerSettings(name="async"))
    clients = [server.client(number) for number in range(3)]
    tasks = tasks_of(*clients)
    for client, task in zip(clients[:2], tasks[:2], strict=True):
        assert client.answer(task).outcome == "accepted"
    clients[2].say(announced(tasks[2]))
    assert clients[2].hear(Credit) == credit(tasks[2], 0, 0, again=True)
    server.compute()
    assert clients[2].hears()[0] == credit(tasks[2], 0, 4, again=True)


# ------------------------------------------------------------------------------------------------------------- restarts


def test_another_server_resumes_the_partial_uploads_of_the_former(tmp_path: Path) -> None:
    def start() -> tuple[PlayedServer, PlayedClient, Task]:
        server = PlayedServer(1, transfers=BOUNDS, partial_files=PartialFiles(tmp_path))
        client = server.client(0)
        return server, client, client.task()

    _, client, task = start()
    client.say(announced(task))
    say_chunk(client, task, 0, 2)
    client.hears()
    assert [path.name for path in tmp_path.iterdir()] == ["0-1.part"]
    # A new coordinator knows of no task, and so the part would go; it is written again where its task is known.
    content = (tmp_path / "0-1.part").read_bytes()
    server, client, task = start()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "0-1.part").write_bytes(content)
    server.protocol._transfers._uploads.partial_names.add("0-1")
    client.say(announced(task))
    assert client.hear(Credit) == credit(task, 2, 6, again=True)
    for start_at in (2, 4, 6):
        say_chunk(client, task, start_at, start_at + 2)
    assert client.hears()[-1].type == "ack"
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------------- a model


def chunks_of(client: PlayedClient) -> bytes:
    """The chunks that it hears, and nothing else, as one."""
    said = client.server.wire.sent.pop(client.route, [])
    assert all(isinstance(message, Chunk) for message, _ in said), said
    return b"".join(bytes(frame) for _, frames in said for frame in frames)


def model(version: int) -> bytes:
    return np.full(2, version, dtype="<f4").tobytes()


def test_a_large_model_is_announced_and_sent_within_the_credit() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    assert task.checksum == checksum([memoryview(model(0))])
    client.say(credit(task, 0, 4, again=True))
    assert chunks_of(client) == model(0)[:4]
    client.say(credit(task, 2, 6))
    assert chunks_of(client) == model(0)[4:6]
    client.say(credit(task, 6, 8, again=True))
    assert chunks_of(client) == model(0)[6:8]
    assert counted(server, "unstale_update_bytes_total", "sent") == 0
    client.say(credit(task, 8, 8))
    assert client.hears() == []
    assert counted(server, "unstale_update_bytes_total", "sent") == 8


def test_a_client_that_has_a_part_asks_for_the_rest() -> None:
    server = server_of()
    client = server.client(0)
    task = client.task()
    client.say(credit(task, 6, 8, again=True))
    assert chunks_of(client) == model(0)[6:]
    assert counted(server, "unstale_transfer_resumes_total", "sent") == 1


def test_a_model_of_a_task_that_is_not_open_is_not_sent() -> None:
    client = server_of().client(0)
    task = client.task()
    client.say(credit(task, 0, 4).model_copy(update={"task_id": 99}))
    error = client.hear(Error)
    assert (error.reason, error.task_id) == (Reason.EXPIRED_TASK, 99)


def test_a_credit_for_an_unknown_task_is_answered_where_models_come_with_their_task() -> None:
    client = PlayedServer().client(0)
    task = client.task()
    for have in (0, 8):
        client.say(Credit(task_id=99, have=have, until=8))
        error = client.hear(Error)
        assert (error.reason, error.task_id) == (Reason.EXPIRED_TASK, 99)
    assert client.answer(task).outcome == "accepted"


def test_models_sent_with_their_task_are_not_requested() -> None:
    client = PlayedServer().client(0)
    client.say(credit(client.task(), 0, 4))
    assert client.hear(Error).reason is Reason.UNEXPECTED_TYPE


def test_a_third_version_waits_and_a_client_waiting_for_an_old_one_gets_a_new_one() -> None:
    server = server_of(3, trigger=TriggerSettings(name="async"))
    slow, fast, other = (server.client(number) for number in range(3))
    of_slow, of_fast, of_other = tasks_of(slow, fast, other)
    slow.say(credit(of_slow, 0, 4, again=True))
    assert chunks_of(slow) == model(0)[:4]
    fast.say(credit(of_fast, 0, 8, again=True))  # of the same version: it goes at once
    assert chunks_of(fast) == model(0)
    fast.say(credit(of_fast, 8, 8))
    fast.say_update(of_fast)
    assert fast.hear(Ack).outcome == "accepted"
    server.compute()
    next_task = fast.hear(Task)
    fast.say(credit(next_task, 0, 8, again=True))
    assert fast.hears() == []  # version 1 waits for version 0
    assert counted(server, "unstale_transfers", "sent", "waiting") == 1
    assert other.answer(of_other).outcome == "accepted"
    server.compute()  # version 2
    slow.say(credit(of_slow, 8, 8))
    newer = fast.hear(Task)  # version 1 can no longer be had
    assert newer.version == 2
    fast.say(credit(newer, 0, 8, again=True))
    assert chunks_of(fast) == model(2)


def test_a_stalled_download_yields_to_another_version() -> None:
    server = server_of(2, trigger=TriggerSettings(name="async"))
    dead, other = server.client(0), server.client(1)
    of_dead, of_other = tasks_of(dead, other)
    dead.say(credit(of_dead, 0, 4, again=True))
    assert other.answer(of_other).outcome == "accepted"
    server.compute()
    task = other.hear(Task)
    other.say(credit(task, 0, 8, again=True))
    assert other.hears() == []
    server.pass_time(6.0)
    dead.beat()
    other.beat()
    server.pass_time(4.0)
    assert chunks_of(other) == model(1)
