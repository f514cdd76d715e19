"""The level `keys`: rounds over CURVE."""

from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer
from unstale.client_conformance.rules import NotApplicableError, require
from unstale.client_conformance.updates import check_same


def _needs_key(peer: Peer) -> None:
    if peer.identity is None:
        raise NotApplicableError("the command has no {key}, so the client was not given one")


@check("keys", "keys-round", "1", "The client connects with its key to the server's key, and takes part")
def _(peer: Peer) -> None:
    _needs_key(peer)
    peer.join()
    peer.round(7)
    peer.round(8)


@check("keys", "keys-reconnect", "1", "After a broken connection the client connects with its key again")
def _(peer: Peer) -> None:
    _needs_key(peer)
    peer.answers_heartbeats = False
    peer.join()
    task, first = peer.trained(7)
    peer.reopen()
    hello = peer.greet()
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    check_same(first, peer.update_of(task))
