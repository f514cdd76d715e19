"""The interface of what computes simulated clients: tasks whose updates are about to be consumed in, updates out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from unstale.learner.versions import Version
from unstale.training.evaluate import Evaluation
from unstale.training.local import LocalUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task of one client.

    number: which task of this client, from 0. base: the version that it starts from, not written to. learning_rate:
    eta_l, > 0. evaluate: the client also measures the base on its own test examples. version: the number of the base,
    needed where what clients hold changes.
    """

    client_id: int
    number: int
    base: Version
    learning_rate: float
    evaluate: bool
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a job made. evaluation: None unless it was asked for and the client has test examples.

    The vectors of `local` belong to whoever asked; `local.state` stays with the backend.
    """

    local: LocalUpdate
    evaluation: Evaluation | None


class Backend(ABC):
    """Computes clients. What a job makes depends on the job and on what its client has kept, not on the others.

    at_a_time: how many jobs it would be given at a time, or a multiple of it; 1 where it makes no difference.
    """

    at_a_time: int = 1

    @abstractmethod
    def compute(self, jobs: Sequence[Job]) -> list[Computed]:
        """What each job makes, in their order. No two are of one client."""

    @abstractmethod
    def keep(self, client_id: int, number: int) -> None:
        """The update of this task was accepted: the client keeps what it made, as `Trainer.keep`."""

    @abstractmethod
    def drop(self, client_id: int, number: int) -> None:
        """The update of this task was not accepted, as `Trainer.drop`."""

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Give back what it holds outside this process. A second time does nothing."""
