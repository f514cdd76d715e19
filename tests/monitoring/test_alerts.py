"""The fault of each alert makes it fire and resolve, on a real run that a real Prometheus scrapes.

The rules are the shipped ones, with every duration divided by `TIMES`: ten minutes are 1.5 s.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from urllib.request import Request, urlopen

import numpy as np
import pytest
import yaml

from support.keyed import KeyedClient
from support.processes import Process, free_port
from support.prometheus import RULES, Prometheus, faster, needs_prometheus
from support.running import PATIENCE_S, RunningServer, small
from support.wire import RawClient
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.injector.service import Injector
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client.net import keys
from unstale_client.net.keys import Identity

pytestmark = [pytest.mark.network, pytest.mark.slow, needs_prometheus]

TIMES = 400
SCRAPE = "120ms"  # more than twice in the shortest range, two minutes
TASK_S = 0.05  # of a client's device, so that rounds come evenly
ENDLESS = 10**9

# The alerts of each test: each alert has one test.
NETWORK = {
    "UnstaleStalenessDrifting",
    "UnstaleRejectionsHigh",
    "UnstaleNoRounds",
    "UnstaleClientsGone",
    "UnstaleTargetDown",
}
HOSTILE = {"UnstaleAccuracyFalling", "UnstaleRoundsOverflowed", "UnstaleClientQuarantined"}
DISK = {"UnstaleJournalSlow", "UnstaleDiskFilling", "UnstaleDiskLow", "UnstaleUpdatesNotStored"}
ESTIMATES = {"UnstaleConnectionsRefused", "UnstaleRunNotStarted", "UnstaleCompensationWorse"}
DEATH = {"UnstaleServerRestarted", "UnstaleServerDown"}


class Watch:
    """A Prometheus with the rules, and the alerts that have fired and resolved."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._fired: set[str] = set()
        self.resolved: set[str] = set()

    def fires(self, *alerts: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until all of them fire. meanwhile: repeated action."""
        self.until(lambda: meanwhile() or self._prometheus.firing() >= set(alerts), f"{alerts} fire")
        self._fired.update(alerts)

    def resolves(self, *alerts: str) -> None:
        """Wait until none of them fires."""
        assert self._fired >= set(alerts), "an alert must fire before it resolves"
        self.until(lambda: not self._prometheus.firing() & set(alerts), f"{alerts} resolve")
        self.resolved.update(alerts)

    def learns(self) -> None:
        """Wait for rounds and evaluated rules, and check that no alert fires."""
        self.knows("run:unstale_rounds:increase5m > 0")
        self.is_silent()

    def is_silent(self, *but: str) -> None:
        """Check that no other alert fires."""
        assert self._prometheus.firing() <= set(but)

    def knows(self, expression: str) -> None:
        """Wait until the expression has a value."""
        self.until(lambda: self._prometheus.query(expression), expression)

    def until(self, holds: Callable[[], object], what: str) -> None:
        self._prometheus.until(holds, what)


@contextmanager
def watching(folder: Path, alerts: set[str], **targets: str | list[str]) -> Iterator[Watch]:
    """A Prometheus with the rules. alerts: that fire and resolve in the context. targets: HOST:PORT, one or more, by
    component: server, injector."""
    rules = folder / "unstale.rules.yml"
    rules.write_text(faster(RULES.read_text(), TIMES))
    jobs = {f"unstale-{name}": [found] if isinstance(found, str) else found for name, found in targets.items()}
    with Prometheus(folder, jobs, rules=[rules], scrape=SCRAPE) as prometheus:
        watch = Watch(prometheus)
        yield watch
        assert watch.resolved >= alerts


def test_these_tests_show_every_alert_firing_and_resolving() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    there_are = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert sorted(chain(NETWORK, HOSTILE, DISK, ESTIMATES, DEATH)) == sorted(there_are)


class InThread:
    """A process object that runs in a thread during the context."""

    def __init__(self, process: ClientProcess | Injector) -> None:
        self._process = process
        self._thread = threading.Thread(target=process.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it does not end"


def clients(settings: Settings, address: str, first: int, count: int, identity: Identity | None = None) -> InThread:
    return InThread(
        ClientProcess(
            server=address,
            client_ids=range(first, first + count),
            prepare=lambda welcome: training_context_of(welcome, settings),
            heartbeat_s=settings.server.heartbeat_s,
            linger_s=0.1,
            identity=identity,
            durations=lambda welcome: lambda client_id, number, steps: TASK_S,
        )
    )


def injector(settings: Settings, upstream: str, address: str, http: str) -> InThread:
    section = {"address": address, "http_address": http, "upstream": upstream}
    return InThread(Injector(settings.model_copy(update={"injector": Settings(injector=section).injector})))


def control(http: str, method: str, path: str, **body: Any) -> None:
    """Send a change to the injector's control port."""
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(f"http://{http}{path}", data=data, method=method), timeout=PATIENCE_S):
        pass


@contextmanager
def toxic(http: str, **settings: Any) -> Iterator[None]:
    control(http, "POST", "/toxics", name="fault", **settings)
    yield
    control(http, "DELETE", "/toxics/fault")


def test_faults_of_the_network(tmp_path: Path) -> None:
    settings = small(
        clients=4,
        rounds=ENDLESS,
        server={
            "heartbeat_s": 0.2,
            "lease_s": 4.0,  # more than the latency below
            "retry_s": 0.1,
            "norm_max": 1e3,  # an exponent with a flipped bit exceeds it
            "quarantine_after": None,
        },
    )
    address, http = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with (
        RunningServer(settings) as server,
        watching(tmp_path, NETWORK, server=str(server.server.http_address), injector=http) as watch,
    ):
        with injector(settings, server.address, address, http), clients(settings, address, 0, 4):
            watch.learns()
            # Four of ten updates are refused. With 64 bits the run diverges and its server ends.
            with toxic(http, type="corrupt", bits=16, where="payload", messages=["update"]):
                watch.fires("UnstaleRejectionsHigh")
            with toxic(http, type="blackout", start_s=0, end_s=1e6):
                watch.fires("UnstaleNoRounds", "UnstaleClientsGone")
            watch.resolves("UnstaleRejectionsHigh", "UnstaleNoRounds", "UnstaleClientsGone")

            before = f"run:unstale_update_staleness_rounds:p99_10m offset {2 * 3600 * 1000 // TIMES}ms"
            watch.knows(before)  # the usual value
            watch.is_silent()
            with toxic(http, type="latency", delay=1.0, direction="up", clients=["0-2"]):  # well within 10 min
                watch.fires("UnstaleStalenessDrifting")
            watch.resolves("UnstaleStalenessDrifting")
        watch.fires("UnstaleTargetDown")  # the injector has ended
        with injector(settings, server.address, address, http):
            watch.resolves("UnstaleTargetDown")


def test_hostile_clients(tmp_path: Path) -> None:
    rate = 2.0
    settings = small(
        rounds=ENDLESS,
        evaluate_every=5,
        training={"name": "gradient", "learning_rate": rate, "batch_size": 32},
        server={
            "norm_max": None,  # updates of the hostile client count
            "quarantine_after": 3,
            "lease_s": 3600.0,  # they are silent for long
        },
    )
    squaring = settings.model_copy(update={"compensator": Settings(compensator={"name": "first-order"}).compensator})
    with (
        RunningServer(settings) as server,
        RunningServer(squaring) as other,
        watching(tmp_path, HOSTILE, server=[str(one.server.http_address) for one in (server, other)]) as watch,
        clients(settings, server.address, 0, 1),
        RawClient(server.address, 1) as hostile,
        RawClient(other.address, 0) as early,
        RawClient(other.address, 1) as late,
    ):
        for one in (hostile, early, late):
            one.join()
        watch.learns()
        watch.knows("unstale_test_accuracy_ratio > 0.7")

        task, good_d = hostile.task()
        assert hostile.answer(task, np.ones_like(good_d)).outcome == "accepted"

        def turn_it_around() -> None:
            task, model_d = hostile.task()
            assert hostile.answer(task, (model_d + 2 * good_d) / rate).outcome == "accepted"

        watch.fires("UnstaleAccuracyFalling", meanwhile=turn_it_around)

        stale, model_d = late.task()
        task, _ = early.task()
        assert early.answer(task, np.ones_like(model_d)).outcome == "accepted"
        early.task()  # there is a version between
        beyond_d = np.zeros_like(model_d)
        beyond_d[0] = 1.8e19  # passes, but its square times the model's distance overflows
        assert late.answer(stale, beyond_d).outcome == "accepted"
        late.task()
        for made_up in range(3):
            verdict = late.answer(stale, np.ones_like(model_d), task_id=10**6 + made_up)
            assert verdict.outcome == "rejected"
        watch.fires("UnstaleRoundsOverflowed", "UnstaleClientQuarantined")
        watch.resolves("UnstaleAccuracyFalling", "UnstaleRoundsOverflowed", "UnstaleClientQuarantined")


def test_a_disk_that_is_full_and_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes, used_bytes = 400e9, 0.0  # used: changes between two scrapes
    slow, mended = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def statvfs(_: object) -> SimpleNamespace:
        nonlocal free_bytes
        free_bytes -= used_bytes
        return SimpleNamespace(f_bavail=int(free_bytes), f_frsize=1)

    def synced(file: int) -> None:
        if slow.is_set():
            mended.wait(0.7)
        fdatasync(file)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os, "fdatasync", synced)
    settings = small(
        rounds=ENDLESS, run={"directory": str(tmp_path / "run"), "durability": "full", "free_bytes_min": 10**6}
    )
    with (
        RunningServer(settings) as server,
        watching(tmp_path, DISK, server=str(server.server.http_address)) as watch,
        clients(settings, server.address, 0, 2),
    ):
        watch.learns()
        slow.set()
        used_bytes = 1e9
        watch.fires("UnstaleJournalSlow", "UnstaleDiskFilling")
        used_bytes = 0
        free_bytes = 1e3
        watch.fires("UnstaleDiskLow", "UnstaleUpdatesNotStored")
        slow.clear()
        mended.set()
        free_bytes = 400e9
        watch.resolves("UnstaleJournalSlow", "UnstaleDiskFilling", "UnstaleDiskLow", "UnstaleUpdatesNotStored")


def test_two_runs_without_client_keys_and_with_bad_estimates(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keygen.create(folder, "server", None)
    keygen.create(folder, "all", ClientIds.parse("all", "--clients"))
    found = keys.client_identity(str(folder / "all.key_secret"), str(folder / "server.key"))
    own = small(clients=1, rounds=ENDLESS, server={"keys": str(folder)})
    harmful = small(
        rounds=ENDLESS,
        # Full batches, so that consecutive updates hardly differ, and stale ones are accurate.
        training={"learning_rate": 0.1, "steps": 1, "batch_size": 512},
        compensator={
            "name": "gradient-inversion",
            "settings": {"iterations": 1, "adapt": False, "residual": 0.0, "trust": 1.0, "switch": "never"},
        },
    )
    with (
        RunningServer(own) as closed,
        RunningServer(harmful) as server,
        watching(tmp_path, ESTIMATES, server=[str(one.server.http_address) for one in (closed, server)]) as watch,
        clients(harmful, server.address, 0, 1),
    ):

        def knock() -> None:
            with KeyedClient(closed.address, 0, None) as client:
                client.socket.poll(50)  # in which it is refused, mostly

        with clients(harmful, server.address, 1, 1):  # each is stale because of the other
            watch.learns()
            watch.fires("UnstaleConnectionsRefused", "UnstaleRunNotStarted", meanwhile=knock)
            watch.fires("UnstaleCompensationWorse")
        with clients(own, closed.address, 0, 1, found):
            watch.resolves("UnstaleCompensationWorse", "UnstaleConnectionsRefused", "UnstaleRunNotStarted")


def test_a_server_that_dies_and_restarts(tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    settings = small(
        clients=1,
        rounds=ENDLESS,
        run={"directory": str(tmp_path / "run")},
        server={"address": f"tcp://127.0.0.1:{free_port()}", "http_address": http},
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    with watching(tmp_path, DEATH, server=http) as watch, clients(settings, settings.server.address, 0, 1):
        with Process("server", "--json", "--config", str(file)) as server:
            watch.learns()
            server.process.kill()
        with RunningServer(settings):  # in the test's process, with another start time
            watch.fires("UnstaleServerRestarted")
        watch.fires("UnstaleServerDown")
        with RunningServer(settings):
            watch.resolves("UnstaleServerDown", "UnstaleServerRestarted")
