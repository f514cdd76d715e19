"""The phases of a run. `machine.Coordinator.TRANSITIONS` says which event leads from one to the next."""

from enum import StrEnum


class Phase(StrEnum):
    """The phase of a run."""

    GATHERING = "gathering"  # until `min_clients` have joined, and again after a rollback
    IDLE = "idle"  # no client can take part in the next round; only with a trigger that chooses participants
    OPEN = "open"  # the round accepts updates
    MAKING = "making"  # the learner applies the round
    FINISHED = "finished"
