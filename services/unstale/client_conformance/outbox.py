"""The level `outbox`: updates that survive the client's process."""

from unstale.client_conformance import run
from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer, Received
from unstale.client_conformance.rules import require
from unstale.client_conformance.updates import check_same
from unstale_proto.messages import Heartbeat, Hello


def _killed(peer: Peer) -> tuple[Hello, Received]:
    """A client that is killed with one update without ack: its hello and the update."""
    peer.answers_heartbeats = False
    hello = peer.join()
    _, update = peer.trained(7)
    peer.kill()
    peer.reopen()
    peer.answers_heartbeats = True
    return hello, update


@check("outbox", "kept-over-kill", "5 rule 1", "After SIGKILL a client with the same folder sends the same update")
def _(peer: Peer) -> None:
    _, update = _killed(peer)
    hello = peer.join()
    require(hello.holding == (7,), "holding [7], the update without ack", list(hello.holding))
    task = run.task(7, peer.welcome)
    check_same(update, peer.update_of(task))
    peer.accept(task)
    peer.beats(1)
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check("outbox", "new-session", "4.1", "A new process draws another session and counts heartbeats from 0")
def _(peer: Peer) -> None:
    before, _ = _killed(peer)
    hello = peer.join()
    require(hello.session != before.session, "another session than the ended process", "the same")
    beat = peer.next(Heartbeat).message
    assert isinstance(beat, Heartbeat)
    require((beat.number, beat.newest_task) == (0, 7), "number 0 and newest_task 7, the kept update", repr(beat))


@check("outbox", "start", "4.5", "`start` names the storage and counts the starts of the processes")
def _(peer: Peer) -> None:
    before, _ = _killed(peer)
    hello = peer.join()
    first, second = before.start, hello.start
    require(first is not None and second is not None, "`start` in hello", (first, second))
    assert first is not None and second is not None
    require(first.home == second.home, f"home {first.home} of the same storage", second.home)
    require(second.number > first.number, f"a number over {first.number}", second.number)


@check("outbox", "acknowledged-over-kill", "5 rule 4", "An update with an ack is not held after SIGKILL")
def _(peer: Peer) -> None:
    peer.join()
    peer.round(7)
    peer.beats(2)
    peer.kill()
    peer.reopen()
    hello = peer.join()
    require(hello.holding == (), "an empty `holding` after the ack", list(hello.holding))
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check("outbox", "other-run-over-kill", "4.1", "Stored updates of another run are deleted")
def _(peer: Peer) -> None:
    _killed(peer)
    peer.welcome = run.welcome(run_id=run.OTHER_RUN_ID)
    peer.join()
    peer.no_update(run.QUIET_BEATS, "of the former run")
    peer.round(2)


@check("outbox", "training-over-kill", "4.1", "A task whose training the kill ended is not in `holding`")
def _(peer: Peer) -> None:
    peer.welcome = run.welcome(train_s=run.TRAIN_S)
    peer.join()
    peer.give(run.task(7, peer.welcome))
    peer.beats(2)
    peer.kill()
    peer.reopen()
    peer.welcome = run.welcome()
    hello = peer.join()
    require(hello.holding == (), "an empty `holding`", list(hello.holding))
    peer.round(8)
