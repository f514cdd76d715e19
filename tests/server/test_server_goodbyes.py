"""The end of a run for clients whose connection changed. Source: PROTOCOL.md 4.5."""

from pathlib import Path

import pytest

from support.played import PlayedServer
from unstale.config.settings import RunSettings, Settings
from unstale.journal.journal import Journal
from unstale.journal.rundir import RunDirectory
from unstale.server.commands import StopNow
from unstale_proto.messages import Ack, Bye, Stop

OTHER_PROCESS = "b" * 32
LINGER_S = 3.0
LEASE_S = 10.0


def test_a_client_that_comes_back_over_another_connection_says_goodbye_there() -> None:
    server = PlayedServer(rounds=1)
    client = server.client(0)
    assert client.answer(client.task()).outcome == "accepted"
    server.compute()
    assert client.hear(Stop).reason == "finished"
    again = server.client(0, route=b"again")
    again.join()
    assert again.hear(Stop).reason == "finished"
    assert not server.protocol.is_over
    again.say(Bye())
    assert again.hear(Bye)
    assert server.protocol.is_over


def test_a_goodbye_before_the_end_is_not_answered() -> None:
    client = PlayedServer().client(0)
    client.task()
    client.say(Bye())
    assert client.hears() == []


def test_a_client_that_was_cut_off_learns_of_the_end_when_it_reconnects() -> None:
    server = PlayedServer(rounds=1)
    client = server.client(0)
    task = client.task()
    server.wire.gone.add(client.route)  # with its update under way, which comes nevertheless
    client.say_update(task)
    server.compute()
    assert client.hears() == []
    assert not server.protocol.is_over
    again = server.client(0, route=b"again")
    again.join(holding=(task.task_id,))
    assert again.hear(Stop).reason == "finished"
    again.say(Bye())
    assert server.protocol.is_over


def test_a_client_that_was_cut_off_is_waited_for_no_longer_than_others() -> None:
    server = PlayedServer(rounds=1)
    client = server.client(0)
    task = client.task()
    server.wire.gone.add(client.route)
    client.say_update(task)
    server.compute()
    server.pass_time(LINGER_S - 0.5)
    assert not server.protocol.is_over
    server.pass_time(0.5)
    assert server.protocol.is_over


def test_a_client_that_was_cut_off_and_lost_long_ago_is_not_waited_for() -> None:
    server = PlayedServer(clients=2, rounds=1)
    lost, client = server.client(0), server.client(1)
    lost.join()
    client.join()
    _, task = client.hears()
    server.pass_time(LEASE_S / 2)
    client.beat()
    server.pass_time(LEASE_S / 2)
    server.wire.gone.add(lost.route)
    assert client.answer(task).outcome == "accepted"
    server.compute()
    assert not server.protocol.is_over
    client.say(Bye())
    assert server.protocol.is_over


def test_a_process_that_was_taken_over_from_does_not_say_goodbye_for_the_other() -> None:
    server = PlayedServer(rounds=1)
    before, now = server.client(0), server.client(0, route=b"now")
    before.join()
    now.join(session=OTHER_PROCESS)
    _, task = now.hears()
    now.say_update(task)
    server.compute()
    assert [type(message) for message in now.hears()] == [Ack, Stop]
    late = server.client(0, route=b"late")
    late.join()
    assert late.hears() != []
    late.say(Bye())
    assert not server.protocol.is_over
    now.say(Bye())
    assert server.protocol.is_over


@pytest.mark.parametrize("has_journal", [False, True])
def test_so_it_is_with_a_server_that_shuts_down(has_journal: bool, tmp_path: Path) -> None:
    settings = Settings(run=RunSettings(free_bytes_min=0))
    journal = None
    if has_journal:
        journal = Journal(RunDirectory.open(tmp_path, settings), settings.run, clock=lambda: 0.0)
    server = PlayedServer(journal=journal, rounds=2)
    client = server.client(0)
    client.task()
    server.compute()
    server.protocol.on_result(StopNow())
    server.commands.clear()
    server.protocol.flush()
    assert client.hear(Stop).reason == "shutdown"
    again = server.client(0, route=b"again")
    again.join()
    assert again.hear(Stop).reason == "shutdown"
    again.say(Bye())
    assert again.hears() == []
    assert server.protocol._sessions.routes() == []
    if journal is not None:
        journal.close()
