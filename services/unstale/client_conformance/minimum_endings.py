"""The level `minimum`: errors, verdicts and `stop`."""

from unstale.client_conformance import run
from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer
from unstale.client_conformance.rules import require
from unstale.client_conformance.updates import check_same
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Bye, Error, Heartbeat, Hello


@check("minimum", "error-not-stored", "4.6", "With `not-stored` the update is kept and sent again")
def _(peer: Peer) -> None:
    peer.join()
    task, first = peer.trained(7)
    peer.send(Error(reason=Reason.NOT_STORED, task_id=7))
    check_same(first, peer.update_of(task))


@check("minimum", "error-passing", "6", "An error that concerns one message changes nothing else")
def _(peer: Peer) -> None:
    peer.join()
    for reason in ("rate-limited", "malformed-header", "header-too-large", "unknown-type", "unexpected-type"):
        peer.send(Error.model_validate({"reason": reason, "message": "examination"}))
    peer.round(7)


@check("minimum", "error-quarantined", "4.6", "With `quarantined` the client repeats hello and keeps its updates")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    peer.join()
    task, first = peer.trained(7)
    peer.send(Error(reason=Reason.QUARANTINED))
    hello = peer.greet()
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    check_same(first, peer.update_of(task))


def _ends_after(reason: str) -> None:
    @check("minimum", f"error-{reason}", "6", f"With `{reason}` the client ends")
    def _(peer: Peer) -> None:
        peer.join()
        peer.send(Error.model_validate({"reason": reason, "message": "examination"}))
        _check_end(peer, f"`error {reason}`")


def _check_end(peer: Peer, after: str) -> None:
    first = len(peer.seen)
    peer.ended()
    hellos = [received for received in peer.seen[first:] if isinstance(received.message, Hello)]
    require(not hellos, f"no hello after {after}", f"{len(hellos)} 'hello'")


for _reason in ("unknown-client", "not-the-owner", "wrong-protocol"):
    _ends_after(_reason)

VERDICTS = (
    "wrong-signature",
    "wrong-size",
    "malformed-payload",
    "wrong-checksum",
    "non-finite",
    "zero-update",
    "expired-task",
    "unknown-version",
    "run-finished",
    "norm-too-large",
)


@check("minimum", "rejections", "6", "An ack with any reason deletes the update")
def _(peer: Peer) -> None:
    peer.join()
    for task_id, reason in enumerate(VERDICTS, 7):
        peer.trained(task_id)
        fields = {"task_id": task_id, "outcome": "rejected", "first_outcome": "rejected", "reason": reason}
        peer.send(Ack.model_validate(fields))
    peer.no_update(run.QUIET_BEATS, "after its ack `rejected`")


@check("minimum", "unknown-task", "6", "After `unknown-task` for the newest task the next task may have any id")
def _(peer: Peer) -> None:
    peer.join()
    peer.trained(900)
    peer.send(Ack(task_id=900, outcome="rejected", first_outcome="rejected", reason=Reason.UNKNOWN_TASK))
    peer.beats(1)
    newest = getattr(peer.next(Heartbeat).message, "newest_task", None)
    require(newest in (0, None), "newest_task 0", newest)
    peer.round(7)


@check("minimum", "server-silent", "4.3", "After lease_s without a message the client sends hello in the same session")
def _(peer: Peer) -> None:
    peer.welcome = run.welcome(lease_s=4 * run.HEARTBEAT_S)
    session = peer.join().session
    peer.answers_heartbeats = False
    hello = peer.next(Hello).message
    assert isinstance(hello, Hello)
    require(hello.session == session, "the session of the first hello", "another one")
    peer.answers_heartbeats = True
    peer.send(peer.welcome)
    peer.round(7)


@check("minimum", "stop-finished", "4.5", "With `stop finished` the client sends bye and ends with exit code 0")
def _(peer: Peer) -> None:
    peer.join()
    peer.round(7)
    peer.stop("finished")
    _farewell(peer)
    code = peer.ended()
    require(code == 0, "exit code 0 after a finished run", code)


def _farewell(peer: Peer) -> None:
    peer.next(Bye)
    peer.send(Bye())


@check("minimum", "stop-failed", "4.5", "With `stop shutdown` and `failed` the client sends bye and ends")
def _(peer: Peer) -> None:
    peer.join()
    peer.stop("shutdown", failed=True)
    _farewell(peer)
    _check_end(peer, "a failed run")


@check("minimum", "stop-superseded", "4.5", "With `stop superseded` the client ends without another hello")
def _(peer: Peer) -> None:
    peer.join()
    peer.stop("superseded")
    _check_end(peer, "`stop superseded`")


@check(
    "minimum", "stop-shutdown", "4.5", "With `stop shutdown` the client sends bye, keeps its updates and joins again"
)
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    session = peer.join().session
    task, first = peer.trained(7)
    peer.stop("shutdown")
    peer.next(Bye)
    hello = peer.greet()
    require(hello.session == session, "the session of the first hello", "another one")
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    check_same(first, peer.update_of(task))
