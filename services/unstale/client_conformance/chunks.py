"""The level `chunks`: models and updates over CHUNK_BYTES, with breaks and losses."""

from typing import cast

from unstale.client_conformance import run
from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer, Received
from unstale.client_conformance.rules import require
from unstale.client_conformance.updates import check_payload
from unstale_proto.errors import Reason
from unstale_proto.messages import Chunk, Credit, Error, Heartbeat, Message, Task, Update
from unstale_proto.signature import dimension
from unstale_proto.transfer import checksum

PIECE = 1 << 20
MODEL = 5 * PIECE + 20  # bytes: CHUNKED_SHAPES


def _begin(peer: Peer, task_id: int = 7) -> tuple[Task, bytes, Credit]:
    """Join a run with a long model, give a task, and wait for the first credit."""
    peer.welcome = run.welcome(chunked=True)
    peer.join()
    model = run.model(dimension(peer.welcome.tensors)).tobytes()
    assert len(model) == MODEL
    task = run.task(task_id, peer.welcome, checksum=checksum([memoryview(model)]))
    peer.give(task, [])
    return task, model, _credit(peer, task, have=0)


def _credit(peer: Peer, task: Task, *, have: int) -> Credit:
    """The next credit with `again`."""
    credit = peer.next(Credit, lambda received: bool(getattr(received.message, "again", None))).message
    assert isinstance(credit, Credit)
    require((credit.task_id, credit.have) == (task.task_id, have), f"credit for task {task.task_id} at {have}", credit)
    require(credit.until > have, f"`until` over {have}", credit.until)
    return credit


def _send_model(peer: Peer, task: Task, model: bytes, start: int, until: int, end: int = MODEL) -> int:
    """Send chunks as the credit allows, at most to `end`; returns the end of the sent bytes."""
    while start < end:
        while start >= until:
            until = max(until, cast(Credit, peer.next(Credit).message).until)
        piece = model[start : min(start + PIECE, until, end)]
        peer.send(Chunk(task_id=task.task_id, offset=start), [piece])
        start += len(piece)
    return start


def _take_update(
    peer: Peer, task: Task, have: int = 0, until: int = MODEL, announcement: Received | None = None
) -> bytes:
    """Give credit for an announced update, and receive its chunks up to `until`."""
    message = cast(Update, (announcement or peer.update_of(task)).message)
    require(message.payload_bytes == MODEL, f"payload_bytes {MODEL}", message.payload_bytes)
    peer.send(Credit(task_id=task.task_id, have=have, until=until, again=True))
    return _receive(peer, task, have, until)


def _receive(peer: Peer, task: Task, have: int, until: int) -> bytes:
    """Receive chunks in order up to `until`, with a credit for each."""
    parts: list[bytes] = []
    while have < until:
        received = peer.next(Chunk)
        chunk = cast(Chunk, received.message)
        require(
            (chunk.task_id, chunk.offset) == (task.task_id, have),
            f"a chunk of task {task.task_id} at {have}",
            f"one of task {chunk.task_id} at {chunk.offset}",
        )
        require(len(received.frames) == 1, "one payload frame in a chunk", len(received.frames))
        have += len(received.payload)
        require(have <= until, f"no bytes from {until} on, the end of the credit", f"a chunk up to {have}")
        parts.append(received.payload)
        if have < until:
            peer.send(Credit(task_id=task.task_id, have=have, until=until))
    return b"".join(parts)


def _whole_update(peer: Peer, task: Task) -> bytes:
    """Receive an update, announced or in one message, check and acknowledge it."""
    announcement = peer.update_of(task)
    body = announcement.payload or _take_update(peer, task, announcement=announcement)
    _check_update(announcement, body)
    peer.accept(task)
    return body


def _check_update(announcement: Received, body: bytes) -> None:
    expected = checksum([memoryview(body)])
    came = cast(Update, announcement.message).checksum
    require(came == expected, f"the checksum {expected} of the payload that came", came)
    cut = 1 << 22
    check_payload(announcement._replace(frames=[body[at : at + cut] for at in range(0, len(body), cut)]), MODEL)


@check("chunks", "model-chunks", "4.7", "A model in chunks is requested with credit, and the task is answered")
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    _send_model(peer, task, model, 0, credit.until)
    _whole_update(peer, task)


@check("chunks", "model-complete", "4.7", "A complete model is answered with a credit whose `have` is payload_bytes")
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    _send_model(peer, task, model, 0, credit.until)
    peer.next(Credit, lambda received: cast(Credit, received.message).have == MODEL)


@check("chunks", "model-resume", "4.7", "After a broken connection a model continues at the received bytes")
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    half = _send_model(peer, task, model, 0, credit.until, end=min(2 * PIECE, credit.until))
    peer.next(Heartbeat)
    peer.beats(1)
    peer.reopen()
    hello = peer.greet()
    require(hello.holding == (7,), "holding [7] from the announcement on", list(hello.holding))
    again = _credit(peer, task, have=half)
    _send_model(peer, task, model, half, again.until)
    _whole_update(peer, task)


@check("chunks", "model-order", "4.7", "A chunk after a gap is dropped and answered with `again`, a copy is ignored")
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    require(credit.until >= 3, "credit for three bytes", credit.until)
    piece = min(PIECE, credit.until // 3)
    peer.send(Chunk(task_id=7, offset=0), [model[:piece]])
    peer.send(Chunk(task_id=7, offset=2 * piece), [model[2 * piece : 3 * piece]])
    again = _credit(peer, task, have=piece)
    peer.send(Chunk(task_id=7, offset=0), [model[:piece]])
    _send_model(peer, task, model, piece, again.until)
    _whole_update(peer, task)


@check("chunks", "model-checksum", "4.7", "A model with a wrong checksum is dropped and requested again from 0")
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    _send_model(peer, task, bytes(MODEL), 0, credit.until)
    again = _credit(peer, task, have=0)
    _send_model(peer, task, model, 0, again.until)
    _whole_update(peer, task)


@check("chunks", "model-refused", "4.7", "The third wrong checksum in a row gives the task back as `wrong-checksum`")
def _(peer: Peer) -> None:
    task, _model, credit = _begin(peer)
    for attempt in range(3):
        _send_model(peer, task, bytes(MODEL), 0, credit.until)
        if attempt < 2:
            credit = _credit(peer, task, have=0)
    error = cast(Error, peer.next(Error).message)
    require((error.reason, error.task_id) == ("wrong-checksum", 7), "`wrong-checksum` with task_id 7", repr(error))


@check(
    "chunks", "model-lost", "4.7", "An answered heartbeat that proves a loss makes the client request the model again"
)
def _(peer: Peer) -> None:
    task, model, credit = _begin(peer)
    piece = min(PIECE, credit.until // 2)
    peer.send(Chunk(task_id=7, offset=0), [model[:piece]])
    again = _credit(peer, task, have=piece)
    _send_model(peer, task, model, piece, again.until)
    _whole_update(peer, task)


@check("chunks", "model-expired", "4.7", "After `expired-task` the task whose model is awaited is dropped")
def _(peer: Peer) -> None:
    _begin(peer)
    peer.send(Error(reason=Reason.EXPIRED_TASK, task_id=7))
    peer.beats(2)
    later = [received.message for received in peer.beats(run.QUIET_BEATS)]
    require(not any(isinstance(message, Credit) for message in later), "no credit for an expired task", "one")


@check(
    "chunks", "update-announced", "4.7", "An update over CHUNK_BYTES is announced with its checksum, without payload"
)
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    update = cast(Update, announcement.message)
    require(not announcement.frames, "no payload in the announcement", f"{len(announcement.frames)} frames")
    require(update.checksum is not None, "a checksum in the announcement", None)
    first = len(peer.seen)
    peer.answers_heartbeats = False
    _no_chunk(peer, first, "before a credit")
    body = _take_update(peer, task, announcement=announcement)
    _check_update(announcement, body)


def _trained(peer: Peer) -> Task:
    """Give a task with a long model, in chunks."""
    task, model, credit = _begin(peer)
    _send_model(peer, task, model, 0, credit.until)
    return task


def _no_chunk(peer: Peer, first: int, when: str) -> None:
    peer.beats(run.QUIET_BEATS)
    chunks: list[Message] = [received.message for received in peer.seen[first:] if isinstance(received.message, Chunk)]
    require(not chunks, f"no chunk {when}", f"{len(chunks)} chunks")


@check("chunks", "update-credit", "4.7", "Chunks go up to `until`, wait there, and continue with the next credit")
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    peer.answers_heartbeats = False
    body = _take_update(peer, task, until=2 * PIECE, announcement=announcement)
    _no_chunk(peer, len(peer.seen), "beyond the credit")
    peer.send(Credit(task_id=7, have=2 * PIECE, until=MODEL))
    body += _receive(peer, task, 2 * PIECE, MODEL)
    _check_update(announcement, body)


@check(
    "chunks",
    "update-again",
    "4.7",
    "A credit with `again` continues at its `have`, also if that is before the sent bytes",
)
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    peer.answers_heartbeats = False
    body = _take_update(peer, task, until=3 * PIECE, announcement=announcement)
    peer.send(Credit(task_id=7, have=PIECE, until=MODEL, again=True))
    _check_update(announcement, body[:PIECE] + _receive(peer, task, PIECE, MODEL))


@check("chunks", "update-overtaken", "4.7", "A credit without `again` and with a smaller `have` is ignored")
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    peer.answers_heartbeats = False
    body = _take_update(peer, task, until=2 * PIECE, announcement=announcement)
    peer.send(Credit(task_id=7, have=2 * PIECE, until=2 * PIECE))
    peer.send(Credit(task_id=7, have=PIECE, until=MODEL))
    _no_chunk(peer, len(peer.seen), "after a credit that was overtaken")
    peer.send(Credit(task_id=7, have=2 * PIECE, until=MODEL))
    _check_update(announcement, body + _receive(peer, task, 2 * PIECE, MODEL))


@check(
    "chunks", "update-resume", "4.7", "After a broken connection an update is announced again and continues at `have`"
)
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    peer.answers_heartbeats = False
    body = _take_update(peer, task, until=2 * PIECE, announcement=announcement)
    peer.reopen()
    peer.greet()
    again = peer.update_of(task)
    require(again.header == announcement.header, "the announcement again, byte for byte", repr(again.message))
    body += _take_update(peer, task, have=2 * PIECE, announcement=again)
    _check_update(announcement, body)


@check(
    "chunks",
    "update-lost",
    "4.7",
    "An answered heartbeat that proves a loss makes the client announce the update again",
)
def _(peer: Peer) -> None:
    task = _trained(peer)
    announcement = peer.update_of(task)
    again = peer.update_of(task)
    require(again.header == announcement.header, "the announcement again, byte for byte", repr(again.message))
    peer.answers_heartbeats = False
    body = _take_update(peer, task, announcement=again)
    _check_update(announcement, body)
    peer.accept(task)
    peer.answers_heartbeats = True
    peer.beats(1)
    peer.no_update(run.QUIET_BEATS, "after its ack")
