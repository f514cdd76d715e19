"""Where a run stands, and how it comes from one phase into the next.

    gathering --min_clients have joined--> open --the trigger closes it--> making --RoundApplied--> open
    making --RoundApplied, with nobody to take part--> idle --a client joins--> open
    making --RoundApplied, the last--> finished        any --StopRequested--> finished

`idle` is for triggers that choose participants when a round starts. An open round that has stalled stays open. A run
that was rolled back to an earlier version is `gathering` again.
"""

from enum import Enum


class Phase(Enum):
    """The phases of the table above."""

    GATHERING = "gathering"
    IDLE = "idle"
    OPEN = "open"
    MAKING = "making"
    FINISHED = "finished"
