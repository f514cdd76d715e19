"""Parts of a simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unstale.config.metrics import ACCURACY, Target
from unstale.coordinator.machine import Coordinator
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.learner.versions import Version
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits
from unstale.simulator.backends.backend import Backend
from unstale.toxics.scenario import Conditions
from unstale.training.measured import MainMetric, Measured
from unstale_proto.messages import EncodingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of a simulation.

    Attributes:
        backend: Computes them; closed at the end.
        steps_of: Local steps of a client's tasks.
        conditions: Devices and toxics of the scenario.
        encoding: Of payloads; None for float32.
        evaluate_every: Rounds between evaluations by the clients; None for none.
        settings: That the server sends to clients.
        names_accepted_task: Tasks name the client's newest accepted task, as in a run of an app over sockets.
    """

    backend: Backend
    steps_of: Callable[[int], int]
    conditions: Conditions
    encoding: EncodingPlan | None = None
    evaluate_every: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    names_accepted_task: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of the simulated server, in seconds.

    Attributes:
        heartbeat_s: Between two heartbeats of a client.
        lease_s: As clients are informed; the coordinator's is infinite where no client can fall silent.
        task_timeout_s: For an answer to a task; None for no deadline.
    """

    heartbeat_s: float
    lease_s: float
    task_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of a simulation, all in their first state.

    Attributes:
        coordinator: Its leases may be finite; clients without simulated heartbeats keep theirs.
        learner: Keeps versions.
        staging: Memory of updates that wait for their round.
        clients: Simulated clients.
        times: Of the simulated server.
        evaluate: Evaluates a version.
        save: Writes the last version, given its number.
        admission: Validates updates; None for no bound.
        client_limits: Quarantine.
        main: The metric that is shown first.
        target: Value of a metric that ends the run; None for none.
    """

    coordinator: Coordinator
    learner: Learner
    staging: Staging
    clients: Clients
    times: Times
    evaluate: Callable[[Version], Measured]
    save: Callable[[Version, int], None]
    admission: Admission | None = None
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    main: MainMetric = ACCURACY
    target: Target | None = None
