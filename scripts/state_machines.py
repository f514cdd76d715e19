"""Draw the state machines of the coordinator from their transition tables: docs/state-machines.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from unstale.coordinator.events import Event
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.membership import TRANSITIONS as CLIENT_TRANSITIONS
from unstale.coordinator.phase import Phase

PAGE = Path(__file__).resolve().parents[1] / "docs/state-machines.md"
TEXT = """# State machines of the coordinator

Written by `python scripts/state_machines.py` from the tables in the code; a test compares this page with them.

## Phases of a run

`coordinator.machine.Coordinator.TRANSITIONS` names the handler of each event by phase, and the phases that may follow.
An event that is not allowed raises an `AssertionError`: it is a mistake of the shell. The diagram leaves out events
that keep the phase.

```mermaid
{phases}
```

| event | {phase_names} |
|{rule}|
{events}

## States of a client

`coordinator.membership.TRANSITIONS` names the reason of each transition; `coordinator.membership.Membership.move`
refuses others.

```mermaid
{clients}
```
"""


def diagram(edges: Mapping[tuple[str, str], str], start: str) -> str:
    """A Mermaid state diagram. edges: label by state and next state."""
    lines = [f"    {source} --> {target}: {label}" for (source, target), label in edges.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {start}", *lines])


def phase_edges() -> dict[tuple[str, str], str]:
    """Events that may change the phase, by phase and next phase."""
    events: dict[tuple[str, str], list[str]] = {}
    for phase, row in Coordinator.TRANSITIONS.items():
        for kind, (_, next_phases) in row.items():
            for target in next_phases:
                if target is not phase:
                    events.setdefault((phase, target), []).append(kind.__name__)
    return {edge: ", ".join(sorted(names)) for edge, names in events.items()}


def event_rows() -> list[str]:
    """Rows of a table with the next phases of each event by phase."""
    rows = []
    for kind in get_args(Event):
        transitions = [Coordinator.TRANSITIONS[phase].get(kind) for phase in Phase]
        cells = ["not allowed" if each is None else ", ".join(each.next_phases) for each in transitions]
        rows.append(f"| {' | '.join([f'`{kind.__name__}`', *cells])} |")
    return rows


def client_edges() -> dict[tuple[str, str], str]:
    """Reasons of transitions of a client, by state and next state."""
    return {
        (before.name.lower(), after.name.lower()): reason
        for before, row in CLIENT_TRANSITIONS.items()
        for after, reason in row.items()
    }


def page() -> str:
    """The whole page."""
    return TEXT.format(
        phases=diagram(phase_edges(), Phase.GATHERING),
        phase_names=" | ".join(Phase),
        rule="|".join(["---"] * (len(Phase) + 1)),
        events="\n".join(event_rows()),
        clients=diagram(client_edges(), "absent"),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
