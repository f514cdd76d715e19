"""Converts events to records and back. Pure.

Heartbeats are not recorded: the record of the lease timer names the clients whose leases expired. The arrival of an
update is in the record of its verdict.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

from unstale.coordinator import events
from unstale.coordinator.actions import Action, Reason
from unstale.coordinator.machine import LEASE, Coordinator
from unstale.journal.rows import EventRow, UpdateRow

SILENT = "silent"
"""Field of a timer's record: clients whose leases expired."""

_NOT_RECORDED = (events.HeartbeatReceived, events.StopRequested)  # the run resumes at the next start
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event) if kind not in _NOT_RECORDED}
_FIELDS = {kind: [field.name for field in fields(kind) if field.name != "at_s"] for kind in _KINDS.values()}


def is_recorded(event: events.Event) -> bool:
    return type(event) in _FIELDS


def to_row(seq: int, event: events.Event, silent: Sequence[int] = ()) -> EventRow:
    """The record of an event. silent: clients whose leases it ends."""
    values = {name: getattr(event, name) for name in _FIELDS[type(event)]}
    if silent:
        values[SILENT] = list(silent)
    return EventRow(seq=seq, at_s=event.at_s, kind=type(event).__name__, fields=values)


def arrival(row: UpdateRow) -> EventRow:
    """The record of an update's arrival. A rejected update has no handle: its row is not stored."""
    defect = None if row.reason in tuple(Reason) else row.reason
    fields = {
        "client_id": row.staged.client_id,
        "task_id": row.staged.task_id,
        "base_version": row.staged.base_version,
        "handle": -1 if row.handle is None else row.handle,
        "defect": defect,
    }
    return EventRow(seq=row.seq, at_s=row.at_s, kind=events.UpdateArrived.__name__, fields=fields)


def to_event(row: EventRow) -> events.Event:
    """The event of a record."""
    kind = _KINDS[row.kind]
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.fields.items() if name != SILENT
    }
    event: events.Event = kind(at_s=row.at_s, **values)
    return event


def replay(row: EventRow, coordinator: Coordinator) -> list[Action]:
    """Handle a recorded event. The state becomes that of the recorded run, except for the times of renewed leases."""
    event = to_event(row)
    if isinstance(event, events.TimerFired) and event.timer == LEASE:
        coordinator.leases.settle(frozenset(row.fields.get(SILENT, ())), event.at_s)
    return coordinator.handle(event)
