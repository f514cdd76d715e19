"""Each alert is made to fire by the fault that it is for, on a real run that a real Prometheus scrapes, and resolves.

The rules are those that are shipped, with every duration divided by `TIMES`: five minutes are 1 s.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from unstale.client.prepare import workplace_of
from unstale.client.service import ClientProcess
from unstale.config import Settings
from unstale.injector.service import Injector
from unstale.net import keyring

pytestmark = [pytest.mark.network, pytest.mark.slow, needs_prometheus]

TIMES = 300
SCRAPE = "150ms"  # more than twice in the shortest range, two minutes
TASK_S = 0.05  # of a client's device, so that rounds come evenly
ENDLESS = 10**9


@contextmanager
def watching(folder: Path, **targets: str | list[str]) -> Iterator[Prometheus]:
    """A Prometheus with the rules. targets: HOST:PORT, one or more, by what it is: server, injector."""
    rules = folder / "unstale.rules.yml"
    rules.write_text(faster(RULES.read_text(), TIMES))
    jobs = {
        f"unstale-{name}": [found] if isinstance(found, str) else found for name, found in targets.items()
    }
    with Prometheus(folder, jobs, rules=[rules], scrape=SCRAPE) as prometheus:
        yield prometheus


def fires(prometheus: Prometheus, *alerts: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until all of them do. meanwhile: done again and again."""
    prometheus.until(lambda: meanwhile() or prometheus.firing() >= set(alerts), f"{alerts} fire")


def resolves(prometheus: Prometheus, *alerts: str) -> None:
    """Wait until none of them fires."""
    prometheus.until(lambda: not prometheus.firing() & set(alerts), f"{alerts} resolve")


def learns(prometheus: Prometheus) -> None:
    """Wait until rounds are made and rules evaluated, and see that nobody is told anything."""
    prometheus.until(
        lambda: any(one.value for one in prometheus.query("run:unstale_rounds:increase5m")), "rounds"
    )
    assert prometheus.firing() == set()


class Running:
    """A process of ours in a thread, while the context lasts."""

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


def clients(settings: Settings, address: str, first: int, count: int) -> Running:
    return Running(
        ClientProcess(
            server=address,
            first=first,
            count=count,
            prepare=lambda welcome: workplace_of(welcome, settings),
            heartbeat_s=settings.server.heartbeat_s,
            linger_s=0.1,
            durations=lambda welcome: lambda client_id, number, steps: TASK_S,
        )
    )


def injector(settings: Settings, upstream: str, address: str, http: str) -> Running:
    section = {"address": address, "http_address": http, "upstream": upstream}
    return Running(Injector(settings.model_copy(update={"injector": Settings(injector=section).injector})))


def told(http: str, method: str, path: str, **body: Any) -> None:
    """Ask the injector's control port for a change."""
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(f"http://{http}{path}", data=data, method=method), timeout=PATIENCE_S):
        pass


@contextmanager
def toxic(http: str, **settings: Any) -> Iterator[None]:
    told(http, "POST", "/toxics", name="fault", **settings)
    yield
    told(http, "DELETE", "/toxics/fault")


def test_faults_of_the_network(tmp_path: Path) -> None:
    settings = small(
        clients=4,
        rounds=ENDLESS,
        server={
            "heartbeat_s": 0.2,
            "lease_s": 4.0,  # more than the latency below
            "retry_s": 0.1,
            "norm_max": 1e3,  # which an exponent with a flipped bit leaves
            "quarantine_after": None,
        },
    )
    address, http = f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with (
        RunningServer(settings) as server,
        watching(tmp_path, server=str(server.server.http_address), injector=http) as prometheus,
    ):
        with injector(settings, server.address, address, http), clients(settings, address, 0, 4):
            learns(prometheus)
            before = f"run:unstale_update_staleness_rounds:p99_10m offset {15 * 60 * 1000 // TIMES}ms"
            prometheus.until(lambda: prometheus.query(before), "it is known what was usual")
            assert prometheus.firing() == set()

            with toxic(http, type="latency", delay=1.5, direction="up", clients=["0-2"]):
                fires(prometheus, "UnstaleStalenessDrifting")
            with toxic(http, type="corrupt", bits=64, where="payload", messages=["update"]):
                fires(prometheus, "UnstaleRejectionsHigh")
            resolves(prometheus, "UnstaleStalenessDrifting", "UnstaleRejectionsHigh")

            with toxic(http, type="blackout", start_s=0, end_s=1e6):
                fires(prometheus, "UnstaleNoRounds", "UnstaleClientsGone")
            resolves(prometheus, "UnstaleNoRounds", "UnstaleClientsGone")
        fires(prometheus, "UnstaleTargetDown")  # the injector has gone
        with injector(settings, server.address, address, http):
            resolves(prometheus, "UnstaleTargetDown")


def test_hostile_clients(tmp_path: Path) -> None:
    rate = 2.0
    settings = small(
        rounds=ENDLESS,
        evaluate_every=5,
        training={"learning_rate": rate, "steps": 1, "batch_size": 32},
        server={
            "quarantine_after": 3,
            "lease_s": 3600.0,  # they say nothing for long
        },
    )
    squaring = settings.model_copy(
        update={"compensator": Settings(compensator={"name": "first-order"}).compensator}
    )
    with (
        RunningServer(settings) as server,
        RunningServer(squaring) as other,
        watching(tmp_path, server=[str(one.server.http_address) for one in (server, other)]) as prometheus,
        clients(settings, server.address, 0, 1),
        RawClient(server.address, 1) as hostile,
        RawClient(other.address, 0) as early,
        RawClient(other.address, 1) as late,
    ):
        for one in (hostile, early, late):
            one.join()
        learns(prometheus)
        prometheus.until(
            lambda: any(one.value > 0.7 for one in prometheus.query("unstale_test_accuracy_ratio")),
            "it learns",
        )

        task, good_d = hostile.task()
        assert hostile.answer(task, np.ones_like(good_d)).outcome == "accepted"

        def turn_it_around() -> None:
            task, model_d = hostile.task()
            assert hostile.answer(task, (model_d + 2 * good_d) / rate).outcome == "accepted"

        fires(prometheus, "UnstaleAccuracyFalling", meanwhile=turn_it_around)

        stale, model_d = late.task()
        task, _ = early.task()
        assert early.answer(task, np.ones_like(model_d)).outcome == "accepted"
        early.task()  # there is a version between
        beyond_d = np.zeros_like(model_d)
        beyond_d[0] = 1.8e19  # passes, and its square times the way of the model does not
        assert late.answer(stale, beyond_d).outcome == "accepted"
        late.task()
        for made_up in range(3):
            verdict = late.answer(stale, np.ones_like(model_d), task_id=10**6 + made_up)
            assert verdict.outcome == "rejected"
        fires(prometheus, "UnstaleRoundsOverflowed", "UnstaleClientQuarantined")
        resolves(prometheus, "UnstaleAccuracyFalling", "UnstaleRoundsOverflowed", "UnstaleClientQuarantined")


def test_a_disk_that_is_full_and_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes, used_bytes = 400e9, 0.0  # used: from one look to the next
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
        rounds=ENDLESS,
        run={"directory": str(tmp_path / "run"), "durability": "full", "free_bytes_min": 10**6},
    )
    with (
        RunningServer(settings) as server,
        watching(tmp_path, server=str(server.server.http_address)) as prometheus,
        clients(settings, server.address, 0, 2),
    ):
        learns(prometheus)
        slow.set()
        used_bytes = 1e9
        fires(prometheus, "UnstaleJournalSlow", "UnstaleDiskFilling")
        used_bytes = 0
        free_bytes = 1e3
        fires(prometheus, "UnstaleDiskLow", "UnstaleUpdatesNotStored")
        slow.clear()
        mended.set()
        free_bytes = 400e9
        resolves(
            prometheus,
            "UnstaleJournalSlow",
            "UnstaleDiskFilling",
            "UnstaleDiskLow",
            "UnstaleUpdatesNotStored",
        )


def test_two_runs_one_without_keys_for_its_clients_and_one_with_bad_estimates(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    keyring.make(folder, "server", None)
    harmful = small(
        rounds=ENDLESS,
        # Of all its examples, so that updates hardly differ from one to the next, and stale ones are good.
        training={"learning_rate": 0.1, "steps": 1, "batch_size": 512},
        compensator={
            "name": "gradient-inversion",
            "settings": {"iterations": 1, "adapt": False, "residual": 0.0, "trust": 1.0, "switch": "never"},
        },
    )
    with (
        RunningServer(small(server={"keys": str(folder)})) as closed,
        RunningServer(harmful) as server,
        watching(tmp_path, server=[str(one.server.http_address) for one in (closed, server)]) as prometheus,
        clients(harmful, server.address, 0, 1),
    ):

        def knock() -> None:
            with KeyedClient(closed.address, 0, None) as client:
                client.socket.poll(50)  # in which it is refused, if not each time

        with clients(harmful, server.address, 1, 1):  # each is stale because of the other
            learns(prometheus)
            fires(prometheus, "UnstaleConnectionsRefused", "UnstaleRunNotStarted", meanwhile=knock)
            fires(prometheus, "UnstaleCompensationWorse")
        resolves(prometheus, "UnstaleCompensationWorse", "UnstaleConnectionsRefused")
        fires(prometheus, "UnstaleClientsGone")  # one of two has said goodbye


def test_a_server_that_dies_and_comes_back(tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    settings = small(
        clients=1,
        rounds=ENDLESS,
        run={"directory": str(tmp_path / "run")},
        server={"address": f"tcp://127.0.0.1:{free_port()}", "http_address": http},
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    with watching(tmp_path, server=http) as prometheus, clients(settings, settings.server.address, 0, 1):
        with Process("server", "--json", "--config", str(file)) as server:
            learns(prometheus)
            server.process.kill()
        with RunningServer(settings):  # in the process of the test, which has started at another time
            fires(prometheus, "UnstaleServerRestarted")
        fires(prometheus, "UnstaleServerDown")
        with RunningServer(settings):
            resolves(prometheus, "UnstaleServerDown", "UnstaleServerRestarted")
