"""The transition table of the client session, against the message types and the diagram in the documents."""

from collections import defaultdict
from pathlib import Path

from unstale_client.session import ClientSession, State
from unstale_proto.codec import TYPES
from unstale_proto.errors import Reason

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
