"""The level `minimum`: joining, heartbeats, tasks, updates and the resend rule."""

from unstale.client_conformance import run
from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer
from unstale.client_conformance.rules import require
from unstale.client_conformance.updates import check_payload, check_same
from unstale_proto.errors import Reason
from unstale_proto.messages import Ack, Error, Heartbeat, Hello, Message, Update
from unstale_proto.transfer import checksum


@check("minimum", "hello-first", "3.1", "The first message is a hello that holds nothing")
def _(peer: Peer) -> None:
    peer.start()
    first = peer.next(Message).message
    require(isinstance(first, Hello), "'hello' as the first message", repr(first.type))
    assert isinstance(first, Hello)
    require(first.client_id == peer.client_id, f"client_id {peer.client_id}", first.client_id)
    require(first.holding == (), "an empty `holding` of a new client", first.holding)


@check("minimum", "hello-repeated", "4.1", "Without an answer, hello is repeated with the same session")
def _(peer: Peer) -> None:
    peer.start()
    first, second = peer.next(Hello).message, peer.next(Hello).message
    require(second == first, f"the same hello again: {first!r}", repr(second))
    peer.send(peer.welcome)
    peer.round(7)


@check("minimum", "heartbeats", "3.6", "Heartbeats count from 0 by one, with `heard` and `newest_task`")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    peer.join()
    unheard = [peer.next(Heartbeat).message for _ in range(2)]
    _check_beats(unheard, [(0, 0, None), (1, 0, None)])
    assert isinstance(unheard[1], Heartbeat)
    peer.answer(unheard[1])
    third = peer.next(Heartbeat, lambda beat: getattr(beat.message, "heard", None) is not None).message
    assert isinstance(third, Heartbeat)
    _check_beats([third], [(third.number, 0, 1)])
    peer.answers_heartbeats = True
    peer.answer(third)
    fourth = peer.next(Heartbeat).message
    assert isinstance(fourth, Heartbeat)
    require(fourth.number == third.number + 1, f"heartbeat {third.number + 1}", fourth.number)
    peer.round(7)
    peer.beats(1)
    fifth = peer.next(Heartbeat).message
    require(getattr(fifth, "newest_task", None) == 7, "newest_task 7 after task 7", getattr(fifth, "newest_task", None))


def _check_beats(beats: list[Message], expected: list[tuple[int, int, int | None]]) -> None:
    came = [(beat.number, beat.newest_task, beat.heard) for beat in beats if isinstance(beat, Heartbeat)]
    require(came == expected, f"number, newest_task and heard {expected}", came)


@check("minimum", "heartbeats-while-training", "4.3", "Heartbeats come every heartbeat_s, also while the client trains")
def _(peer: Peer) -> None:
    peer.welcome = run.welcome(train_s=run.TRAIN_S)
    peer.join()
    peer.beats(1)
    task = run.task(7, peer.welcome)
    peer.give(task)
    first = len(peer.seen)
    peer.update_of(task)
    between = [received.message for received in peer.seen[first:] if isinstance(received.message, Heartbeat)]
    require(
        len(between) >= 2,
        f"heartbeats every {run.HEARTBEAT_S} s while the client trains for the {run.TRAIN_S} s of the setting "
        f"`{run.TRAIN_SETTING}`",
        f"{len(between)} between the task and its update",
    )
    require(between[-1].newest_task == 7, "newest_task 7 while the client trains it", between[-1].newest_task)


@check("minimum", "update-header", "3.4", "An update answers its task: ids, signature, learning rate and checksum")
def _(peer: Peer) -> None:
    peer.join()
    update = peer.round(7)
    message, task = update.message, run.task(7, peer.welcome)
    assert isinstance(message, Update)
    for name, expected in (
        ("base_version", task.version),
        ("signature", task.signature),
        ("learning_rate", task.learning_rate),
        ("kind", "delta"),
        ("payload_bytes", task.payload_bytes),
    ):
        require(getattr(message, name) == expected, f"{name} {expected}", getattr(message, name))
    require(message.encoding in (None, "float32"), "encoding float32, since welcome names none", message.encoding)
    right = checksum([memoryview(frame) for frame in update.frames])
    require(message.checksum in (None, right), f"no checksum, or {right}", message.checksum)


@check("minimum", "update-payload", "9", "The payload has the size of the model, finite numbers, and is not only zeros")
def _(peer: Peer) -> None:
    peer.join()
    update = peer.round(7)
    check_payload(update, run.task(7, peer.welcome).payload_bytes)


@check("minimum", "rounds", "4", "The client answers one task after another")
def _(peer: Peer) -> None:
    peer.join()
    for task_id in (7, 8, 12):
        peer.round(task_id)


@check("minimum", "not-after-ack", "5 rule 4", "An update with an ack is not sent again")
def _(peer: Peer) -> None:
    peer.join()
    peer.round(7)
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check("minimum", "not-without-proof", "5 rule 2", "An update is not sent again before a later heartbeat is answered")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    peer.join()
    peer.trained(7)
    peer.no_update(run.QUIET_BEATS, "while no later heartbeat is answered")


@check("minimum", "lost-ack", "5 rule 2", "The answer to a later heartbeat makes the client resend the same bytes")
def _(peer: Peer) -> None:
    peer.join()
    task, first = peer.trained(7)
    check_same(first, peer.update_of(task))
    peer.send(Ack(task_id=7, outcome="duplicate", first_outcome="accepted"))
    peer.beats(2)
    peer.no_update(run.QUIET_BEATS, "after an ack `duplicate`")


@check("minimum", "reconnect", "4.4", "After a broken connection: hello with `holding`, then the update again, once")
def _(peer: Peer) -> None:
    session = peer.join().session
    task = run.task(7, peer.welcome)
    peer.answers_heartbeats = False
    peer.give(task)
    first = peer.update_of(task)
    peer.reopen()
    hello = peer.greet()
    require(hello.session == session, "the session of the first hello", "another one")
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    check_same(first, peer.update_of(task))
    peer.answers_heartbeats = True
    peer.accept(task)
    peer.beats(1)
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check(
    "minimum",
    "reconnect-while-training",
    "4.4",
    "`holding` names the task that the client trains, and the training continues",
)
def _(peer: Peer) -> None:
    peer.welcome = run.welcome(train_s=run.TRAIN_S)
    peer.join()
    task = run.task(7, peer.welcome)
    peer.give(task)
    peer.beats(2)
    peer.reopen()
    hello = peer.greet()
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    peer.update_of(task)


@check("minimum", "holding-empty", "3.1", "A task with an ack is not in `holding`")
def _(peer: Peer) -> None:
    peer.join()
    peer.round(7)
    peer.beats(2)
    peer.reopen()
    hello = peer.greet()
    require(hello.holding == (), "an empty `holding` after the ack of the only task", list(hello.holding))


@check("minimum", "numbers-after-reconnect", "3.6", "Numbers of heartbeats continue after a reconnect in one session")
def _(peer: Peer) -> None:
    peer.join()
    last = peer.beats(3)[-1].message
    peer.reopen()
    peer.greet()
    after = peer.next(Heartbeat).message
    assert isinstance(last, Heartbeat) and isinstance(after, Heartbeat)
    require(after.number > last.number, f"a heartbeat with a number over {last.number}", after.number)


@check("minimum", "hello-first-asked", "4.4", "`error hello-first` is answered with hello, then updates are sent again")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    session = peer.join().session
    task, first = peer.trained(7)
    peer.send(Error(reason=Reason.HELLO_FIRST))
    hello = peer.greet()
    require(hello.session == session, "the session of the first hello", "another one")
    require(hello.holding == (7,), "holding [7]", list(hello.holding))
    check_same(first, peer.update_of(task))


@check("minimum", "newer-task", "4.2", "A task with a greater id replaces the one that the client trains")
def _(peer: Peer) -> None:
    peer.welcome = run.welcome(train_s=run.TRAIN_S)
    peer.join()
    peer.give(run.task(7, peer.welcome))
    peer.beats(2)
    newer = run.task(9, peer.welcome)
    peer.give(newer)
    peer.update_of(newer)
    peer.accept(newer)
    peer.no_update(run.QUIET_BEATS, "of the replaced task")


@check("minimum", "doubled-task", "4.2", "A task whose id is not over the greatest one is ignored")
def _(peer: Peer) -> None:
    peer.join()
    task = run.task(7, peer.welcome)
    peer.give(task)
    peer.give(task)
    peer.update_of(task)
    peer.accept(task)
    peer.give(task)
    peer.give(run.task(6, peer.welcome))
    peer.beats(1)
    peer.no_update(run.QUIET_BEATS, "for a copy of task 7 and for an older task")
    peer.round(8)


@check("minimum", "task-of-another-run", "3.3", "A task with another run_id is ignored")
def _(peer: Peer) -> None:
    peer.join()
    peer.give(run.task(20, run.welcome(run_id=run.OTHER_RUN_ID)))
    peer.no_update(run.QUIET_BEATS, "for a task of another run")
    peer.round(7)


@check(
    "minimum", "wrong-signature", "4.2", "A task with another signature is not trained, and is given back or dropped"
)
def _(peer: Peer) -> None:
    peer.join()
    peer.give(run.task(7, peer.welcome, signature="0" * 64))
    _check_not_taken(peer, "wrong-signature")


@check(
    "minimum", "wrong-size", "4.2", "A task with a payload of another size is not trained, and is given back or dropped"
)
def _(peer: Peer) -> None:
    peer.join()
    peer.give(run.task(7, peer.welcome), [run.model(20).tobytes()])
    _check_not_taken(peer, "wrong-size")


def _check_not_taken(peer: Peer, reason: str) -> None:
    first = len(peer.seen)
    peer.no_update(run.QUIET_BEATS, f"for a task that is {reason}")
    messages = [received.message for received in peer.seen[first:]]
    for message in messages:
        if isinstance(message, Error):
            came = (message.reason, message.task_id)
            require(came == (reason, 7), f"no error, or `{reason}` with task_id 7", came)
    newest = [message.newest_task for message in messages if isinstance(message, Heartbeat)][-1]
    require(newest in (0, None), "newest_task 0", newest)
    peer.round(8)


@check(
    "minimum", "refused-not-counted", "4.2", "A task that did not fit does not count: a copy of it that fits is taken"
)
def _(peer: Peer) -> None:
    peer.join()
    peer.give(run.task(7, peer.welcome), [run.model(20).tobytes()])
    peer.no_update(run.QUIET_BEATS, "for a task that is wrong-size")
    peer.round(7)


@check("minimum", "doubled-ack", "5 rule 4", "An ack for an update that the client does not hold is ignored")
def _(peer: Peer) -> None:
    peer.join()
    task = run.task(7, peer.welcome)
    peer.round(7)
    peer.accept(task)
    peer.accept(run.task(3, peer.welcome))
    peer.round(8)
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check("minimum", "doubled-welcome", "4.1", "A second welcome of the same run changes nothing")
def _(peer: Peer) -> None:
    peer.join()
    peer.send(peer.welcome)
    peer.round(7)
    peer.send(peer.welcome)
    peer.no_update(run.QUIET_BEATS, "after its ack")
    peer.round(8)


@check("minimum", "other-run", "4.4", "With another run_id in welcome, tasks and updates of the former run are deleted")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    peer.join()
    peer.trained(7)
    peer.reopen()
    peer.answers_heartbeats = True
    peer.welcome = run.welcome(run_id=run.OTHER_RUN_ID)
    peer.greet()
    peer.no_update(run.QUIET_BEATS, "of the former run")
    peer.round(2)


@check("minimum", "unknown-fields", "2", "Unknown fields, and payload frames where none belong, are ignored")
def _(peer: Peer) -> None:
    peer.answers_heartbeats = False
    peer.start()
    peer.next(Hello)
    peer.send_with(peer.welcome, later_field={"a": [1, None, "x"]})
    beat = peer.next(Heartbeat).message
    assert isinstance(beat, Heartbeat)
    peer.send_with(Heartbeat(number=beat.number, version=run.VERSION), [b"frame"], later_field=1.5)
    peer.next(Heartbeat, lambda received: getattr(received.message, "heard", None) == beat.number)
    peer.answers_heartbeats = True
    task = run.task(7, peer.welcome)
    peer.send_with(task, run.model_frames(), later_field=True)
    peer.update_of(task)
    peer.send_with(Ack(task_id=7, outcome="accepted", first_outcome="accepted"), [b"frame"], later_field="x")
    peer.no_update(run.QUIET_BEATS, "after its ack")


@check("minimum", "unusable-messages", "2", "Messages that cannot be used are answered with `error` or dropped")
def _(peer: Peer) -> None:
    peer.join()
    first = len(peer.seen)
    peer.send_bytes(b"\xc1 not msgpack")
    peer.send_with(Heartbeat(number=0, version=0), type="letter")
    peer.send_with(Heartbeat(number=0, version=0), number=-1)
    peer.send(Hello(client_id=0, session="0" * 32))
    peer.round(7)
    for received in peer.seen[first:]:
        message = received.message
        if isinstance(message, Error):
            require(message.task_id is None, "no task_id in an error for an unusable message", message.task_id)
