"""Runs in virtual time of a model of one parameter with scripted clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from unstale.config.metrics import Target
from unstale.coordinator import actions, events
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.learner.bounds import NormBounds, NormMax
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.metrics.progress import Progress
from unstale.policies import create
from unstale.server.admission import Admission
from unstale.server.client_limits import ClientLimits
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale.simulator.backends.backend import Backend, Computed, Job, Result
from unstale.simulator.parts import Clients, Parts, Times
from unstale.simulator.simulation import Simulation
from unstale.toxics.delay import Distribution, Exponential
from unstale.toxics.device import Device, Devices
from unstale.toxics.link import Applied
from unstale.toxics.scenario import Conditions
from unstale.training.local import Kind, LocalUpdate
from unstale.training.measured import Measured
from unstale.training.workload import NotTrained
from unstale_proto.messages import EncodingPlan

Train = Callable[[int, int, Tensor, float], LocalUpdate | NotTrained]
Latency = Callable[[int, int], float]


def update_of(value: float, *, loss: float = 1.0, kind: Kind = "gradient") -> LocalUpdate:
    """A delta is over a learning rate of 1, so that it is its own pseudo-gradient."""
    return LocalUpdate(
        vector_d=torch.tensor([value]),
        kind=kind,
        num_examples=1,
        batch_examples=1,
        steps=1,
        loss=loss,
        learning_rate=1.0,
    )


def still(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
    return update_of(1e-30)  # negligible


def computed(results: Sequence[Result]) -> list[Computed]:
    """The results of jobs that all have an update."""
    made = [result for result in results if isinstance(result, Computed)]
    assert len(made) == len(results)
    return made


class OneNumber(Backend):
    """A model of one parameter without cost. train: maps a base model to the result of its task.

    settled: client, number of the task, and whether its update was accepted. accuracy: of the client's own evaluation.
    batches: numbers of jobs computed together.
    """

    def __init__(self, train: Train = still, *, at_a_time: int = 1) -> None:
        self._train = train
        self.at_a_time = at_a_time
        self.settled: list[tuple[int, int, bool]] = []
        self.asked: list[tuple[int, float]] = []
        self.batches: list[int] = []

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Result]:
        self.batches.append(len(jobs))
        return [self._one(job) for job in jobs]

    def _one(self, job: Job) -> Result:
        evaluation = None
        if job.evaluate:
            self.asked.append((job.client_id, float(job.base.model_d[0])))
            evaluation = Measured(metrics={"accuracy": job.client_id / 10, "loss": 1.0}, num_examples=1)
        local = self._train(job.client_id, job.number, job.base.model_d, job.learning_rate)
        return local if isinstance(local, NotTrained) else Computed(local=local, evaluation=evaluation)

    @override
    def keep(self, client_id: int, number: int) -> None:
        self.settled.append((client_id, number, True))

    @override
    def drop(self, client_id: int, number: int) -> None:
        self.settled.append((client_id, number, False))


class Takes(Devices):
    """Durations of tasks, set by a test."""

    def __init__(self, latency: Latency) -> None:
        super().__init__(0, {})
        self._latency = latency

    @override
    def duration_s(self, client_id: int, number: int, steps: int) -> float:
        return self._latency(client_id, number)


def drawn(clients: int, task: Distribution | None = None, *, seed: int = 0, **device: Any) -> Latency:
    """Durations that devices draw for tasks; Exp(1) by default."""
    made = Device(task=task or Exponential(distribution="exponential", mean_s=1.0), **device)
    devices = Devices(seed, dict.fromkeys(range(clients), made))
    return lambda client_id, number: devices.duration_s(client_id, number, 1)


def always(seconds: float) -> Latency:
    return lambda client_id, number: seconds


@dataclass
class Trace:
    """The events of a simulation for its observer."""

    told: list[tuple[events.Event, Sequence[actions.Action]]] = field(default_factory=list)

    def __call__(self, event: events.Event, what_to_do: Sequence[actions.Action]) -> None:
        self.told.append((event, what_to_do))

    def of(self, *kinds: type) -> list[Any]:
        """The events of these types, in order."""
        return [event for event, _ in self.told if isinstance(event, kinds)]

    def done(self, *kinds: type) -> list[Any]:
        """The actions of these types, in order."""
        return [action for _, what in self.told for action in what if isinstance(action, kinds)]

    @property
    def arrivals(self) -> list[tuple[float, int]]:
        return [(event.at_s, event.client_id) for event in self.of(events.UpdateArrived)]

    @property
    def staleness(self) -> list[int]:
        """Of every update in a round."""
        made = self.done(actions.ApplyRound)
        return [contribution.staleness for action in made for contribution in action.contributions]


def one_number(
    train: Train | OneNumber,
    tasks_take: Latency,
    *,
    clients: int,
    rounds: int,
    trigger: TriggerSettings,
    selector: SelectorSettings | None = None,
    toxics: Sequence[Applied] = (),
    stale_rounds: dict[int, int] | None = None,
    seed: int = 0,
    heartbeat_s: float = 2.0,
    lease_s: float = inf,
    observe: Any = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    evaluate_clients_every: int | None = None,
    norm_max: NormMax = None,
    admission: Admission | None = None,
    task_timeout_s: float | None = None,
    client_limits: ClientLimits | None = None,
    encoding: EncodingPlan | None = None,
    target: Target | None = None,
    **others: Any,
) -> Simulation:
    settings = CoordinatorSettings(
        clients=clients,
        rounds=rounds,
        trigger=trigger,
        selector=selector or SelectorSettings(name="all"),
        seed=seed,
        lease_s=lease_s,
        evaluate_every=10**6,
        retry_s=1.0,
        min_clients=None,
        **({"stale_rounds": stale_rounds} if stale_rounds else {}),
    )
    policy = create("fedbuff", dimension=1, clients=clients, device="cpu")
    return Simulation(
        Parts(
            coordinator=Coordinator(settings),
            learner=Learner(torch.zeros(1), policy, learning_rate=lambda counted: 1.0, keep_versions=True),
            staging=Staging(1, settings.round_size_max, blocks_max=clients + 3),
            clients=Clients(
                backend=train if isinstance(train, OneNumber) else OneNumber(train),
                steps_of=lambda client_id: 1,
                conditions=Conditions(toxics=tuple(toxics), devices=Takes(tasks_take), stale_rounds=stale_rounds or {}),
                encoding=encoding,
                evaluate_every=evaluate_clients_every,
            ),
            times=Times(heartbeat_s=heartbeat_s, lease_s=min(lease_s, 1e6), task_timeout_s=task_timeout_s),
            evaluate=lambda version: Measured(
                metrics={"accuracy": 0.5, "loss": float(version.model_d[0])}, class_accuracy=(0.5, None), num_examples=2
            ),
            save=lambda version, number: None,
            admission=admission or Admission(NormBounds(norm_max, clients=clients)),
            client_limits=client_limits or ClientLimits(),
            target=target,
        ),
        on_progress=on_progress,
        observe=observe,
        **others,
    )
