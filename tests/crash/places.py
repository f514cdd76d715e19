"""Places in the code where a process can be killed: real code, a real SIGKILL, at an exact call."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from itertools import count
from threading import Event
from typing import Any

BEFORE, AFTER, TORN = "before", "after", "in the middle of"
ASKED = "asked to end before"  # SIGTERM, a pause to handle it, then the call
NOTICED_S = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """A call. target: `module:attribute`. when: one of the above; TORN is half-way through a write. calls_max: it is
    one of so many first calls of a process."""

    target: str
    when: str
    calls_max: int

    def __str__(self) -> str:
        return f"{self.when} {self.target.partition(':')[2]}"


def _around(target: str, calls_max: int) -> list[Place]:
    return [Place(target, BEFORE, calls_max), Place(target, AFTER, calls_max)]


_JOURNAL = "unstale.journal"

FIRST: dict[str, list[Place]] = {
    "server": [
        *_around(f"{_JOURNAL}.rundir:_write_config", 1),
        *_around(f"{_JOURNAL}.formats:_create", 1),
        *_around(f"{_JOURNAL}.database:Database.set_meta", 1),
        Place(f"{_JOURNAL}.segments:Segments.append", AFTER, 1),
    ],
    "inject": [],
    "client": [Place("unstale_client.atomic_file:write", AFTER, 1)],
}
"""At the start of a run."""

AGAIN: dict[str, list[Place]] = {
    "server": [
        *_around(f"{_JOURNAL}.segments:Segments.cut", 1),
        *_around(f"{_JOURNAL}.recovery:Recovery._start", 1),
        *_around(f"{_JOURNAL}.recovery:Recovery._apply", 3),
        *_around(f"{_JOURNAL}.recovery:Recovery._restage", 1),
        Place(f"{_JOURNAL}.recovery:Recovery._apply", ASKED, 3),
        *_around("unstale.server.protocol:ServerProtocol.resume", 1),
        Place(f"{_JOURNAL}.journal:Journal.commit", AFTER, 1),
    ],
    "inject": [],
    "client": [
        Place("unstale_client.outbox:Outbox.load", AFTER, 1),
        Place("unstale_client.outbox:Outbox.drop", BEFORE, 2),
        Place("unstale_client.update_store:UpdateStore.begin", AFTER, 1),
    ],
}
"""When a process resumes after a death."""

DURING: dict[str, list[Place]] = {
    "server": [
        *_around(f"{_JOURNAL}.segments:Segments.append", 90),
        Place("unstale.server.background_writer:write_all", TORN, 90),
        *_around("unstale.server.background_writer:BackgroundWriter.wait", 90),
        *_around(f"{_JOURNAL}.journal:Journal.commit", 150),
        Place(f"{_JOURNAL}.sqlite:Connection.insert", BEFORE, 900),
        Place(f"{_JOURNAL}.database:Database._join", AFTER, 30),
        *_around(f"{_JOURNAL}.sequence_file:SequenceFile.set", 150),
        Place(f"{_JOURNAL}.checkpoints:write_all", TORN, 4),
        *_around(f"{_JOURNAL}.checkpoints:sync_folder", 2),
        *_around(f"{_JOURNAL}.journal:Journal.saved", 2),
        *_around(f"{_JOURNAL}.journal:Journal._forget", 2),
        *_around(f"{_JOURNAL}.journal:Journal._delete", 2),
        *_around(f"{_JOURNAL}.database:Database.forget_checkpoints", 2),
        *_around(f"{_JOURNAL}.database:Database.forget_events", 2),
        *_around(f"{_JOURNAL}.database:Database.forget_segments", 2),
        *_around(f"{_JOURNAL}.segments:Segments.retire", 2),
        *_around(f"{_JOURNAL}.segments:Segments._begin", 4),
        Place(f"{_JOURNAL}.checkpoints:write", ASKED, 2),
        *_around("unstale.learner.learner:Learner.apply_round", 30),
        Place("unstale.learner.learner:Learner.apply_round", ASKED, 30),
        *_around("unstale.server.protocol:ServerProtocol._applied", 30),
        *_around("unstale.server.sender:Sender.send_to_client", 90),
        *_around("unstale.server.sender:Sender.send_task", 90),
    ],
    "inject": [
        *_around("unstale.injector.core:Core.on_message", 500),
        *_around("unstale.injector.proxy:Proxy._send_up", 250),
        *_around("unstale.injector.proxy:Proxy._send_down", 250),
    ],
    "client": [
        *_around("unstale_client.atomic_file:write", 40),
        Place("unstale_client.atomic_file:os.replace", BEFORE, 40),
        *_around("unstale_client.outbox:Outbox.put", 40),
        *_around("unstale_client.outbox:Outbox.keep", 40),
        *_around("unstale_client.outbox:Outbox.drop", 40),
        *_around("unstale_client.loop:ClientLoop._send", 150),
        *_around("unstale_client.update_store:UpdateStore.settle", 40),
        Place("unstale_client.outbox:Outbox.put", ASKED, 40),
    ],
}
"""During a run."""

LAST: dict[str, list[Place]] = {
    "server": [
        *_around("unstale.server.executor:ActionExecutor._finish", 1),
        *_around("unstale.server.executor:ActionExecutor._send_stop_to_all", 1),
    ],
    "inject": [],
    "client": [*_around("unstale_client.outbox:Outbox.clear", 2)],
}
"""At the end of a run."""


def arm(place: Place, call: int) -> None:
    """Make this process die at a place. call: number of the call, from 1."""
    holder, name = found(place)
    setattr(holder, name, _deadly(getattr(holder, name), place, call))


def found(place: Place) -> tuple[Any, str]:
    """The owner of the place, and its name there. Raises AttributeError for a missing one."""
    module, _, path = place.target.partition(":")
    *above, name = path.split(".")
    holder: Any = import_module(module)
    for part in above:
        holder = getattr(holder, part)
    getattr(holder, name)
    return holder, name


def _deadly(original: Callable[..., Any], place: Place, call: int) -> Callable[..., Any]:
    calls = count(1)

    @wraps(original)
    def deadly(*arguments: Any, **options: Any) -> Any:
        is_due = next(calls) == call
        if is_due and place.when == BEFORE:
            die(place)
        if is_due and place.when == ASKED:
            os.kill(os.getpid(), signal.SIGTERM)
            Event().wait(NOTICED_S)
        if is_due and place.when == TORN:
            file, data, offset = arguments
            original(file, data[: len(data) // 2], offset)
            die(place)
        result = original(*arguments, **options)
        if is_due and place.when == AFTER:
            die(place)
        return result

    return deadly


def die(place: Place) -> None:
    """Kill this process without notice to its peers."""
    os.write(sys.stderr.fileno(), f"dies {place}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
