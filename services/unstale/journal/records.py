"""Events as records, and back. Pure.

A heartbeat is no record: it only renews a lease. So that the end of leases can be played again without heartbeats, the
record of that timer names the clients whose lease ran out. That an update came stands in the record of its verdict.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from unstale.coordinator import events
from unstale.coordinator.actions import Action, Reason
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.journal.rows import EventRow, UpdateRow

SILENT = "silent"
"""Field of a timer's record: clients whose lease had run out."""

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        events.ClientJoined,
        events.ClientLeft,
        events.UpdateArrived,
        events.TaskFailed,
        events.TaskDeclined,
        events.TaskLost,
        events.TaskExpired,
        events.TimerFired,
        events.RoundApplied,
        events.Resumed,
    )
}
_FIELDS = {kind: [field.name for field in fields(kind) if field.name != "at_s"] for kind in _KINDS.values()}


def is_recorded(event: events.Event) -> bool:
    """Whether an event changes what a coordinator that takes up the run must know. That the operator ended the process
    does not: the run goes on when it is started again."""
    return type(event) in _FIELDS


def to_row(seq: int, event: events.Event, silent: Sequence[int] = ()) -> EventRow:
    """The record of an event. silent: clients whose lease it ends, if it is that timer."""
    values = {name: getattr(event, name) for name in _FIELDS[type(event)]}
    if silent:
        values[SILENT] = list(silent)
    return EventRow(seq=seq, at_s=event.at_s, kind=type(event).__name__, fields=values)


def arrival(row: UpdateRow) -> EventRow:
    """The record of the event that an update came. Which row was refused nobody asks any more: it lies nowhere."""
    defect = None if row.reason in tuple(Reason) else row.reason
    fields = {
        "client_id": row.client_id,
        "task_id": row.task_id,
        "base_version": row.base_version,
        "handle": -1 if row.handle is None else row.handle,
        "defect": defect,
    }
    return EventRow(seq=row.seq, at_s=row.at_s, kind=events.UpdateArrived.__name__, fields=fields)


def to_event(row: EventRow) -> events.Event:
    """The event of a record."""
    kind = _KINDS[row.kind]
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.fields.items()
        if name != SILENT
    }
    event: events.Event = kind(at_s=row.at_s, **values)
    return event


def play(row: EventRow, coordinator: Coordinator) -> list[Action]:
    """Have a coordinator handle what another one did. Its state ends up the same, but for when leases were renewed."""
    event = to_event(row)
    if isinstance(event, events.TimerFired) and event.timer == LEASE:
        coordinator.leases.settle(frozenset(row.fields.get(SILENT, ())), event.at_s)
    return coordinator.handle(event)
