"""A server that is asked to end before anybody has come: the run begins when it is started again."""

from pathlib import Path
from typing import cast

from support.played import PlayedServer
from swarm.learning import PlayedLearner, evaluation
from unstale.config.settings import RunSettings, Settings
from unstale.coordinator.machine import Coordinator
from unstale.journal.journal import Journal
from unstale.journal.recovery import Recovery
from unstale.journal.rundir import RunDirectory
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.server.commands import ApplyCommand, CheckpointCommand, Saved, StopNow

SETTINGS = Settings(run=RunSettings(free_bytes_min=0))


def journal_in(path: Path) -> Journal:
    return Journal(RunDirectory.open(path, SETTINGS), SETTINGS.run, clock=lambda: 0.0)


def test_a_run_without_clients_resumes_at_its_beginning(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    server = PlayedServer(journal=journal)
    server.protocol.on_result(StopNow())
    server.protocol.flush()
    (command,) = server.commands
    assert isinstance(command, CheckpointCommand)
    file, size_bytes = journal.write_checkpoint(
        command.version, command.seq, PlayedLearner().state_dict(), command.coordinator
    )
    server.protocol.on_result(Saved(version=0, seq=command.seq, file=file, size_bytes=size_bytes, checkpoint_s=0.0))
    server.protocol.flush()
    assert server.protocol.is_over
    journal.close()

    journal = journal_in(tmp_path)
    recovery = Recovery(
        journal,
        coordinator=Coordinator(server.coordinator.settings),
        learner=cast("Learner", PlayedLearner()),
        staging=Staging(3, 1, blocks_max=2),
        evaluate=evaluation,
    )
    assert recovery.run().at_s == 0.0  # else leases run out as soon as they begin
    journal.close()


def test_a_server_that_is_stopped_while_it_makes_a_version_writes_a_checkpoint_of_that(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    server = PlayedServer(journal=journal)
    client = server.client(0)
    client.say_update(client.task())
    server.protocol.on_result(StopNow())
    server.protocol.flush()
    (applying,) = (command for command in server.commands if isinstance(command, ApplyCommand))
    assert not server.protocol.is_finishing
    server.commands.clear()
    applied = server.carry_out(applying)
    assert applied is not None
    server.protocol.on_result(applied)
    server.protocol.flush()
    assert [command.version for command in server.commands if isinstance(command, CheckpointCommand)] == [1]
    assert server.protocol.is_finishing
    journal.close()
