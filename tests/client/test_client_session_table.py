"""The transition table of the client session, against the message types, the contract and the diagram in docs."""

import re
from collections import defaultdict
from pathlib import Path

from unstale_client.session import GREETING_S, ClientSession, State
from unstale_proto.codec import TYPES
from unstale_proto.errors import Reason
from wire_schema import Row, subsection, table

DOCUMENT = Path(__file__).parents[2] / "docs/client-session.md"
OTHER_EVENTS = {"reachable", "unreachable", "timer", "server silent", "leave"}


def diagram() -> str:
    events: dict[tuple[State, State], list[str]] = defaultdict(list)
    for (state, event), transition in ClientSession.TRANSITIONS.items():
        events[state, transition.next_state].append(event)
    edges = [f"    {source} --> {target}: {', '.join(names)}" for (source, target), names in events.items()]
    lines = ["stateDiagram-v2", f"    [*] --> {State.AWAY}", *edges, f"    {State.OVER} --> [*]"]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def test_the_diagram_in_the_documents_matches_the_table() -> None:
    assert diagram() in DOCUMENT.read_text(encoding="utf-8")


def test_every_event_is_a_message_a_timer_or_a_change_of_the_connection() -> None:
    stops = {f"stop {reason}" for reason in ("finished", "superseded", "shutdown", "failed")}
    messages = {name for name in TYPES if name not in ("stop", "error")}
    errors = {f"error {reason}" for reason in Reason}
    events = {event for _, event in ClientSession.TRANSITIONS}
    assert events <= OTHER_EVENTS | messages | stops | errors
    assert events >= OTHER_EVENTS | messages | stops


def test_an_ended_session_stays_ended() -> None:
    assert not [state for state, _ in ClientSession.TRANSITIONS if state is State.OVER]


def test_every_state_can_end() -> None:
    for state in (State.AWAY, State.GREETING, State.IN):
        assert ClientSession.TRANSITIONS[state, "leave"].next_state is State.OVER


CONTRACT = table(subsection("4.8"))


def transitions_of(row: Row) -> dict[tuple[State, str], State]:
    """Next state by state and event, of a row of the contract."""
    cells = {State(name.strip("`")): cell.strip("`") for name, cell in row.items() if name not in ("event", "action")}
    events = re.findall(r"`([^`]+)`", row["event"])
    return {(state, event): State(cell) for event in events for state, cell in cells.items() if cell}


def test_the_state_table_of_the_contract_is_that_of_the_session() -> None:
    rows = [transitions_of(row) for row in CONTRACT]
    written = {key: target for row in rows for key, target in row.items()}
    assert sum(map(len, rows)) == len(written), "a pair stands in two rows"
    assert written == {key: transition.next_state for key, transition in ClientSession.TRANSITIONS.items()}


def test_an_action_of_the_contract_is_one_handler_of_the_session() -> None:
    handlers = defaultdict(set)
    for row in CONTRACT:
        handlers[row["action"]] |= {ClientSession.TRANSITIONS[key].handler for key in transitions_of(row)}
    assert {action for action, found in handlers.items() if len(found) > 1} == set()


def test_the_timers_of_the_contract_are_those_of_the_session() -> None:
    intervals = {ClientSession._greet, ClientSession._pause, ClientSession._on_shutdown}
    beats = {ClientSession._beat, ClientSession._enter}
    for row in CONTRACT:
        handlers = {ClientSession.TRANSITIONS[key].handler for key in transitions_of(row)}
        assert (f"timer {GREETING_S:g} s" in row["action"]) == (handlers <= intervals), row
        assert ("timer `heartbeat_s`" in row["action"]) == (handlers <= beats), row
