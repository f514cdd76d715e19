"""Real servers and clients with an injector in between: no effect without toxics, and survival of all toxics."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backbone import test_twin as twin
from support import apps
from support import coordinator_invariants as invariants
from support.large import RunningClient
from support.running import PATIENCE_S, RunningServer, small
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.coordinator import actions, events
from unstale.injector.service import Injector
from unstale.metrics.progress import Outcome
from unstale.server.service import Server

pytestmark = pytest.mark.network


def injector_for(settings: Settings, upstream: str, **changes: Any) -> Injector:
    section = {"address": "tcp://127.0.0.1:0", "http_address": None, "upstream": upstream, **changes}
    return Injector(settings.model_copy(update={"injector": Settings(injector=section).injector}))


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("loop", ["sync", "k-async", "buffered"])
def test_an_injector_without_toxics_leaves_the_model_unchanged(
    loop: str, tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BehindInjector(Server):
        """A server whose address is that of its injector."""

        def __init__(self, settings: Settings, **arguments: Any) -> None:
            super().__init__(settings, **arguments)
            self._injector = injector_for(settings, self.address, tcp=tcp)
            self.address = self._injector.address

        def run(self) -> Outcome:
            with ThreadPoolExecutor(1) as pool:
                passing = pool.submit(self._injector.run)
                try:
                    return super().run()
                finally:
                    self._injector.stop()
                    passed.append(passing.result(PATIENCE_S).up)

    passed: list[int] = []
    monkeypatch.setattr(twin, "Server", BehindInjector)
    settings = twin.settings_of(loop)
    trace = twin.Trace()
    in_simulation = twin.simulated(settings, trace)
    through_it = twin.through_sockets(settings, trace.arrivals)
    assert through_it.model_digest == in_simulation.model_digest
    assert through_it.updates == in_simulation.updates
    assert passed[0] >= len(trace.arrivals)


SCENARIO = """
groups:
  - name: everyone
    toxics:
      - {type: drop, toxicity: 0.2}
      - {type: duplicate, toxicity: 0.1}
      - {type: reorder, toxicity: 0.1, delay: {distribution: exponential, mean_s: 0.01}}
      - {type: disconnect, toxicity: 0.02, messages: [task, update]}
"""


@pytest.mark.slow
def test_a_run_of_300_rounds_survives_all_toxics_and_counts_each_update_once(tmp_path: Path) -> None:
    scenario = tmp_path / "all.yaml"
    scenario.write_text(SCENARIO)
    settings = small(
        clients=8,
        rounds=300,
        trigger={"name": "k-async", "k": 4},
        scenario={"name": str(scenario)},
        server={"heartbeat_s": 0.05, "lease_s": 2.0, "retry_s": 0.1, "linger_s": 1.0},
    )
    rounds: list[actions.ApplyRound] = []
    received = 0

    def observe(event: events.Event, following: Sequence[actions.Action]) -> None:
        nonlocal received
        rounds.extend(action for action in following if isinstance(action, actions.ApplyRound))
        received += isinstance(event, events.UpdateArrived)
        invariants.check(coordinator)

    running = RunningServer(settings, observe=observe)
    coordinator = running.server._protocol._coordinator
    with running:
        injector = injector_for(settings, running.address)
        clients = ClientProcess(
            server=injector.address,
            client_ids=range(8),
            prepare=lambda welcome: training_context_of(welcome, settings).workload,
            heartbeat_s=settings.server.heartbeat_s,
            linger_s=0.1,
        )
        with ThreadPoolExecutor(2) as pool:
            passing = pool.submit(injector.run)
            training = pool.submit(clients.run)
            try:
                outcome = running.end(patience_s=240.0)
            finally:
                clients.stop()
                training.result(PATIENCE_S)
                injector.stop()
                numbers = passing.result(PATIENCE_S)
    assert outcome.versions == len(rounds) == 300
    counted = [contribution.task_id for taken in rounds for contribution in taken.contributions]
    assert len(counted) == len(set(counted)) == coordinator.aggregated
    assert outcome.updates["accepted"] == coordinator.aggregated + len(coordinator.pending)
    assert received == sum(outcome.updates.values())
    assert all(numbers.faults[name] for name in ("drop", "duplicate", "reorder", "disconnect"))
    assert not [thread for thread in threading.enumerate() if thread.name in ("proxy", "relay")]


def test_an_app_counts_each_accepted_update_once_through_all_toxics(tmp_path: Path) -> None:
    scenario = tmp_path / "all.yaml"
    scenario.write_text(SCENARIO)
    settings = small(
        app="support.apps:counting",
        clients=3,
        rounds=40,
        model={},
        partition={},
        training={"learning_rate": 0.125},
        scenario={"name": str(scenario)},
        server={"heartbeat_s": 0.05, "lease_s": 2.0, "retry_s": 0.1, "linger_s": 1.0},
    )
    accepted = apps.Accepted(3)
    with RunningServer(settings, observe=accepted) as server:
        injector = injector_for(settings, server.address)
        with ThreadPoolExecutor(1) as pool:
            passing = pool.submit(injector.run)
            try:
                with RunningClient(settings, injector.address, tmp_path / "outbox"):
                    outcome = server.end(patience_s=120.0)
            finally:
                injector.stop()
            numbers = passing.result(PATIENCE_S)
    accepted.check()
    assert outcome.updates["accepted"] == len(accepted.tasks) >= 40
    assert numbers.faults["drop"] > 0
