"""Attacks by payloads in chunks: places without progress, and useless chunks."""

from collections.abc import Sequence

from hostile.attacks.attack import Attack, Facts
from hostile.member import Member, members
from hostile.target import Target
from unstale_client.net.clock import now_s
from unstale_proto.limits import CHUNK_BYTES
from unstale_proto.messages import Chunk, Credit, Task
from unstale_proto.transfer import checksum

CHUNKS_MAX = 2_000_000
DRIP_SHARE = 0.4
"""Share of the server's lease that a dripping client waits between two bytes."""


def dripping_uploads(target: Target) -> Facts:
    """Every hostile client announces an update and sends one byte at a time, just before it would lose its place."""
    dripped = 0
    with members(target) as joined:
        uploads = [upload for member in joined if (upload := _announced(member)) is not None]
        sent = dict.fromkeys(range(len(uploads)), 0)
        while target.is_active() and uploads:
            for place, (member, task, payload) in enumerate(uploads):
                offset = sent[place]
                if offset < len(payload):
                    chunk = Chunk(task_id=task.task_id, offset=offset)
                    sent[place] += member.send(chunk, [payload[offset : offset + 1]])
                    dripped += 1
                member.beat()
            _listen([member for member, _, _ in uploads], _pause_s(uploads[0][0]), target)
    return {"uploads": len(uploads), "bytes": dripped}


def dripping_downloads(target: Target) -> Facts:
    """Every hostile client acknowledges the model of its task byte by byte, and never completely."""
    sent = 0
    with members(target) as joined:
        tasks = [(member, found[0]) for member in joined if (found := member.next_task()) is not None]
        have = 0
        while target.is_active() and tasks:
            have += 1
            for member, task in tasks:
                sent += member.send(Credit(task_id=task.task_id, have=have, until=have + 1))
                member.beat()
            _listen([member for member, _ in tasks], _pause_s(tasks[0][0]), target)
    return {"downloads": len(tasks), "credits": sent}


def useless_chunks(target: Target) -> Facts:
    """The first chunk of an update again and again, which is ignored."""
    sent = 0
    with members(target, 1) as joined:
        for member in joined:
            upload = _announced(member)
            if upload is None:
                continue
            _, task, payload = upload
            while target.is_active() and sent < target.count(CHUNKS_MAX):
                if member.send(Chunk(task_id=task.task_id, offset=0), [payload[:4]]):
                    sent += 1
                else:
                    member.next(0.01)
    return {"chunks": sent}


def _announced(member: Member) -> tuple[Member, Task, bytes] | None:
    """A task with an announced update, with a payload of ones that is never sent completely."""
    found = member.next_task()
    if found is None:
        return None
    task = found[0]
    payload = member.dimension * b"\0\0\x80\x3f"
    member.send(member.update(task, checksum=checksum([memoryview(payload)]), payload_bytes=len(payload)))
    return member, task, payload


def _pause_s(member: Member) -> float:
    assert member.welcome is not None
    return DRIP_SHARE * member.welcome.lease_s


def _listen(who: Sequence[Member], seconds: float, target: Target) -> None:
    """Read messages for so long."""
    until_s = now_s() + seconds
    while target.is_active() and now_s() < until_s:
        for member in who:
            while member.next(0) is not None:
                pass
        target.wait(0.1)


ATTACKS = (
    Attack(
        name="dripping-uploads",
        about=f"two clients send updates of more than {CHUNK_BYTES // 1024**2} MiB a byte at a time",
        scenes=("large", "large-keyed"),
        run=dripping_uploads,
    ),
    Attack(
        name="dripping-downloads",
        about="two clients ask for their model a byte at a time",
        scenes=("large", "large-keyed"),
        run=dripping_downloads,
    ),
    Attack(
        name="useless-chunks", about="the same chunk again and again", scenes=("plain", "keyed"), run=useless_chunks
    ),
)
