"""100,000 clients in virtual time: rounds a second and memory, with a model of one parameter that costs nothing.

This measures the simulator's own work: the coordinator, task latencies, messages, staging, and the learner. Seconds are
the process's processor time.

    python -m benchmarks.simulation_scale [--quick]
"""

import argparse
import resource
import time
from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from benchmarks import report
from unstale.coordinator import events
from unstale.coordinator.actions import Observer
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.learner.learner import Learner
from unstale.learner.updates import Staging
from unstale.policies import create
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale.simulator.backends.backend import Backend, Computed, Job
from unstale.simulator.parts import Clients, Parts, Times
from unstale.simulator.simulation import Simulation
from unstale.toxics.delay import Exponential
from unstale.toxics.device import Device, Devices
from unstale.toxics.scenario import Conditions
from unstale.training.local import LocalUpdate
from unstale.training.measured import Measured

CLIENTS = 100_000
ROUNDS = 1_000
K = 100
BUDGET_ROUNDS_PER_S = 100
BUDGET_BYTES = 2 * 10**9


class Null(Backend):
    """A backend with equal updates."""

    def __init__(self, dimension: int) -> None:
        local = LocalUpdate(
            vector_d=torch.ones(dimension),
            kind="gradient",
            num_examples=1,
            batch_examples=1,
            steps=1,
            loss=1.0,
            learning_rate=1.0,
        )
        self._computed = Computed(local=local, evaluation=None)

    def compute(self, jobs: Sequence[Job]) -> list[Computed]:
        return [self._computed] * len(jobs)

    def keep(self, client_id: int, number: int) -> None:
        pass

    def drop(self, client_id: int, number: int) -> None:
        pass


def run(quick: bool = False) -> dict[str, Any]:
    """Rounds per second, with and without the first tasks of all clients, and the process's peak memory.

    quick: fewer rounds.
    """
    torch.set_num_threads(1)
    rounds = ROUNDS // 10 if quick else ROUNDS
    first_s: list[float] = []

    def observe(event: events.Event, _: object) -> None:
        if isinstance(event, events.RoundApplied) and event.version == 1:
            first_s.append(time.process_time())

    simulation = simulation_of(CLIENTS, rounds, K, observe)
    started_s = time.process_time()
    outcome = simulation.run()
    ended_s = time.process_time()
    assert outcome.versions == rounds
    return {
        "clients": CLIENTS,
        "k": K,
        "rounds": rounds,
        "start_s": first_s[0] - started_s,
        "rounds_per_s": (rounds - 1) / (ended_s - first_s[0]),
        "rounds_per_s_with_start": rounds / (ended_s - started_s),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def simulation_of(clients: int, rounds: int, k: int, observe: Observer, dimension: int = 1) -> Simulation:
    """Clients with exponential latencies and equal updates of some dimension, in rounds of k."""
    coordinator_settings = CoordinatorSettings(
        clients=clients,
        rounds=rounds,
        trigger=TriggerSettings(name="k-async", k=k),
        selector=SelectorSettings(name="all"),
        seed=0,
        lease_s=inf,
        evaluate_every=10**9,
        retry_s=1.0,
        min_clients=None,
    )
    device = Device(task=Exponential(distribution="exponential", mean_s=1.0))
    policy = create("fedavg", dimension=dimension, clients=clients, device="cpu")
    parts = Parts(
        coordinator=Coordinator(coordinator_settings),
        learner=Learner(torch.zeros(dimension), policy, learning_rate=lambda _: 1.0, keep_versions=True),
        staging=Staging(dimension, k, blocks_max=clients // k + 2),
        clients=Clients(
            backend=Null(dimension),
            steps_of=lambda _: 1,
            conditions=Conditions(devices=Devices(0, dict.fromkeys(range(clients), device))),
        ),
        times=Times(heartbeat_s=2.0, lease_s=10.0),
        evaluate=lambda _: Measured(metrics={"accuracy": 0.0, "loss": 0.0}, num_examples=1),
        save=lambda *_: None,
    )
    return Simulation(parts, on_progress=lambda _: None, observe=observe)


def markdown(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    rows = [
        ("rounds a second", f"{figures['rounds_per_s']:,.0f}", f"{BUDGET_ROUNDS_PER_S}"),
        ("with the first task of every client", f"{figures['rounds_per_s_with_start']:,.0f}", ""),
        ("seconds until the first round", f"{figures['start_s']:.1f}", ""),
        ("most memory", report.megabytes(figures["memory_bytes"]), report.megabytes(BUDGET_BYTES)),
    ]
    return (
        f"{figures['clients']:,} clients, {figures['rounds']:,} rounds of K = {figures['k']}, a model of one "
        "parameter, exponential latencies, one thread.\n\n" + report.table(("", "measured", "budget"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    print(markdown(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
