"""Attacks by many messages, and by messages in place of the requested work."""

from hostile.attacks.attack import Attack, Facts
from hostile.member import Member, members
from hostile.target import Target
from unstale_proto.errors import Reason
from unstale_proto.messages import Error, Hello, Task

TEXT = "x" * 1000
MESSAGES_MAX = 400_000


def errors(target: Target) -> Facts:
    """Errors with the longest text, each of which the server may log."""
    sent = 0
    with members(target, 1) as joined:
        for member in joined:
            while target.is_active() and sent < target.count(MESSAGES_MAX):
                if member.send(Error(reason=Reason.NON_FINITE, message=TEXT)):
                    sent += 1
                elif member.next(0.05) is None:
                    target.wait(0.01)
    return {"errors": sent}


def lost_tasks(target: Target) -> Facts:
    """Heartbeats that prove the loss of every task, so that each is replaced."""
    tasks = beats = 0
    with members(target, 1) as joined:
        for member in joined:
            while target.is_active() and tasks < target.count(MESSAGES_MAX):
                beats += member.beat(newest_task=0)
                found = member.next(0.05)
                while found is not None:
                    tasks += isinstance(found[0], Task)
                    found = member.next(0)
    return {"tasks": tasks, "heartbeats": beats}


def never_answers(target: Target) -> Facts:
    """Every hostile client receives its tasks and sends only heartbeats."""
    with members(target) as joined:
        beats = 0
        while target.is_active():
            for member in joined:
                beats += member.beat()
                _drain(member)
            target.wait(0.2)
    return {"clients": len(joined), "heartbeats": beats}


def hellos(target: Target) -> Facts:
    """Hellos of one connection after the other, each with another session."""
    sent = 0
    with members(target, 1) as joined:
        for member in joined:
            while target.is_active() and sent < target.count(MESSAGES_MAX):
                session = target.draws.bytes(16).hex()
                sent += member.send(Hello(client_id=member.client_id, session=session))
                _drain(member)
    return {"hellos": sent}


def garbage(target: Target) -> Facts:
    """Headers of random bytes."""
    sent = 0
    with members(target, 1) as joined:
        for member in joined:
            while target.is_active() and sent < target.count(MESSAGES_MAX):
                sent += member.send_bytes(target.draws.bytes(int(target.draws.integers(1, 4096))))
                _drain(member)
    return {"messages": sent}


def _drain(member: Member) -> None:
    while member.next(0) is not None:
        pass


ATTACKS = (
    Attack(
        name="errors",
        about="`error` messages with a text of 1,000 characters, as fast as they are taken",
        scenes=("plain", "keyed"),
        run=errors,
    ),
    Attack(
        name="lost-tasks",
        about="heartbeats that say that every task was lost",
        scenes=("plain", "keyed"),
        run=lost_tasks,
    ),
    Attack(
        name="never-answers",
        about="two of six clients of synchronous rounds send heartbeats and no update",
        scenes=("synchronous",),
        run=never_answers,
    ),
    Attack(
        name="hellos",
        about="hellos with another session each, as fast as they are taken",
        scenes=("plain", "keyed"),
        run=hellos,
    ),
    Attack(
        name="garbage",
        about="headers of random bytes, as fast as they are taken",
        scenes=("plain", "keyed"),
        run=garbage,
    ),
)
