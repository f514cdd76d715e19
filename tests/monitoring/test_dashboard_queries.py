"""Every query of every dashboard, on a real Prometheus that scrapes a real run with all kinds of events."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from monitoring import dashboards, preview, querying
from support.keyed import KeyedClient
from support.prometheus import Prometheus, needs_prometheus
from support.running import PATIENCE_S, RunningServer, small, until
from support.scrape import sample
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.injector.service import Injector
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client.net import keys
from unstale_client.net.keys import Identity
from unstale_proto.messages import Error

pytestmark = [pytest.mark.network, needs_prometheus]

HOSTED, OTHER = 5, 5  # regular clients in one process, and the id of a misbehaving one
CLIENTS = HOSTED + 1
TOXICS = (
    {"type": "latency", "delay": {"distribution": "exponential", "mean_s": 0.02}, "clients": ["0-2"]},
    {"type": "duplicate", "toxicity": 0.5, "messages": ["update"]},
)
RULE = {"alert": "UnstaleOfThisTest", "expr": "vector(1)"}
SCRAPE_S, SHOWN_S = 0.2, 10.0  # of support.prometheus; time range of a dashboard


def settings_of(folder: Path) -> Settings:
    """Settings with stale updates, some inverted and some beyond the budget, and all measurements enabled."""
    return small(
        clients=CLIENTS,
        min_clients=HOSTED,
        rounds=100_000,
        evaluate_every=2,
        evaluate_clients_every=1,
        trigger={"name": "k-async", "k": 2},
        training={"name": "sgd", "learning_rate": 0.05, "steps": 1, "batch_size": 8},
        compensator={
            "name": "gradient-inversion",
            "settings": {
                "images_max": 2,
                "iterations": 4,
                "iterations_min": 4,
                "iterations_per_round": 5,  # enough for one update
                "start": "close",
            },
        },
        run={"directory": str(folder / "run"), "durability": "normal", "checkpoint_every": 5},
        server={"keys": str(folder / "keys")},
        trackers=["support.trackers:Failing"],
    )


def made_keys(folder: Path) -> None:
    keygen.create(folder / "keys", "server", None)
    keygen.create(folder / "keys", "injector", ClientIds.parse("all", "--clients"))
    keygen.create(folder / "keys", "hosted", ClientIds.parse(f"0-{HOSTED - 1}", "--clients"))
    keygen.create(folder / "keys", "other", ClientIds.parse(str(OTHER), "--clients"))


def identity(folder: Path, name: str, towards: str) -> Identity:
    found = keys.client_identity(str(folder / f"keys/{name}.key_secret"), str(folder / f"keys/{towards}.key"))
    assert found is not None
    return found


@contextmanager
def in_a_thread(process: Any) -> Iterator[None]:
    """Run an object with `run` and `stop` in a thread."""
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        process.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def injector_to(upstream: str, folder: Path) -> Injector:
    scenario = folder / "scenario.yaml"
    scenario.write_text(yaml.safe_dump({"groups": [{"name": "all", "toxics": list(TOXICS)}]}))
    own = {
        "address": "tcp://127.0.0.1:0",
        "http_address": "127.0.0.1:0",
        "upstream": upstream,
        "keys": str(folder / "keys"),
    }
    return Injector(Settings(clients=CLIENTS, injector=own, scenario={"name": str(scenario)}))


def clients_of(address: str, folder: Path) -> ClientProcess:
    own = small(clients=CLIENTS)
    return ClientProcess(
        server=address,
        client_ids=range(HOSTED),
        prepare=lambda settings: training_context_of(settings, own).workload,
        heartbeat_s=0.2,
        linger_s=0.1,
        identity=identity(folder, "hosted", "injector"),
        http_address="127.0.0.1:0",
    )


def misbehave(folder: Path, server: RunningServer, injector: Injector) -> None:
    """Send a non-finite update, an invalid message, and connections without a key."""
    with KeyedClient(server.address, OTHER, identity(folder, "other", "server")) as client:
        client.join()
        task, _ = client.task()
        assert client.answer(task, np.full(650, np.nan, dtype="<f4")).outcome == "rejected"
        client.say_bytes(b"no message")
        while not isinstance(answer := client.hear_any()[0], Error):
            pass  # it may have a task again
        assert answer.reason == "malformed-header"
    for address, http, counter in (
        (server.address, server.http, "unstale_handshakes_refused_total"),
        (injector.address, f"http://{injector.http_address}", "unstale_injector_refused_total"),
    ):
        with KeyedClient(address, OTHER, None):
            until(lambda: sample(http, counter, reason="no-key"), "a stranger is refused")  # noqa: B023


@dataclass(frozen=True, slots=True)
class Watched:
    """The data of a Prometheus."""

    prometheus: Prometheus
    start_s: float

    def get(self, path: str, parameters: Mapping[str, str]) -> Any:
        return self.prometheus.get(path, **parameters)

    @property
    def span(self) -> querying.Span:
        """The last seconds, because a growing window would take longer each time."""
        now_s = self.prometheus.query("time()")[0].value
        start_s = max(self.start_s, now_s - SHOWN_S)
        return querying.Span(start_s=start_s, end_s=now_s, step_s=SCRAPE_S, scrape_s=SCRAPE_S)

    def shows(self, dashboard: dashboards.Dashboard, title: str, run: str | None = None) -> list[querying.Series]:
        """The data of a panel, by its title."""
        (panel,) = [panel for panel in dashboard.panels if panel.title == title]
        return querying.asked(self.get, panel, querying.chosen(self.get, dashboard, self.span, run), self.span)

    def without_data(self) -> dict[str, list[str]]:
        """Queries without data, by panel."""
        span, found = self.span, {}
        for dashboard in dashboards.DASHBOARDS:
            variables = querying.chosen(self.get, dashboard, span)
            for panel in dashboard.panels:
                answered = {
                    one.query
                    for one in querying.asked(self.get, panel, variables, span)
                    if any(isfinite(value) for value in one.values)
                }
                empty = [query.expression for place, query in enumerate(panel.queries) if place not in answered]
                if empty:
                    found[f"{dashboard.title}: {panel.title}"] = empty
        return found


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Server, injector and clients with keys, a compensator, faults and refusals, scraped by a Prometheus."""
    folder = tmp_path_factory.mktemp("watched")
    made_keys(folder)
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": [RULE]}]}))
    with ExitStack() as stack:
        server = stack.enter_context(RunningServer(settings_of(folder)))
        injector = injector_to(server.address, folder)
        stack.enter_context(in_a_thread(injector))
        clients = clients_of(injector.address, folder)
        stack.enter_context(in_a_thread(clients))
        targets = {
            "unstale-server": [str(server.server.http_address)],
            "unstale-client": [str(clients.http_address)],
            "unstale-injector": [str(injector.http_address)],
        }
        prometheus = stack.enter_context(Prometheus(folder, targets, rules=[folder / "rules.yml"]))
        start_s = prometheus.query("time()")[0].value
        prometheus.until(lambda: prometheus.query("unstale_model_version > 0"), "there are rounds")
        misbehave(folder, server, injector)
        yield Watched(prometheus, start_s)


def test_every_query_of_every_panel_returns_data(watched: Watched) -> None:
    found: dict[str, list[str]] = {}

    def all_answered() -> bool:
        found.clear()
        found.update(watched.without_data())
        return not found

    try:
        watched.prometheus.until(all_answered, "every query gives data")
    except AssertionError as error:
        raise AssertionError(found) from error


def test_every_variable_and_restart_annotation_has_values(watched: Watched) -> None:
    for dashboard in dashboards.DASHBOARDS:
        found = querying.chosen(watched.get, dashboard, watched.span)
        for variable in dashboard.variables:
            assert querying.values_of(watched.get, variable, found, watched.span), variable.query
        started = watched.prometheus.query(querying.filled(dashboard.started, found))
        assert started and all(one.value > 1e12 for one in started), "milliseconds since 1970"


def test_a_dashboard_of_one_run_shows_one_of_two_runs(tmp_path: Path) -> None:
    overview, staleness, *_ = dashboards.DASHBOARDS
    with RunningServer(small(clients=2)) as small_one, RunningServer(small(clients=3)) as large_one:
        clients = {str(small_one.server.http_address): 2, str(large_one.server.http_address): 3}
        with Prometheus(tmp_path, {"unstale-server": list(clients)}) as prometheus:
            watched = Watched(prometheus, prometheus.query("time()")[0].value)
            prometheus.until(lambda: len(prometheus.query("unstale_run_info")) == 2, "both are scraped")
            runs = {one.labels["instance"]: one.labels["run"] for one in prometheus.query("unstale_run_info")}
            rows = watched.shows(overview, "Runs")
            assert {(one.labels["instance"], one.labels["run"]) for one in rows if one.query == 0} == {*runs.items()}
            for instance, run in runs.items():
                prometheus.until(lambda: watched.shows(staleness, "Clients by state", run), "a step has data")  # noqa: B023
                states = watched.shows(staleness, "Clients by state", run)
                assert sum(one.values[-1] for one in states) == clients[instance]


@pytest.mark.slow
def test_every_dashboard_can_be_drawn(watched: Watched, tmp_path: Path) -> None:
    url = watched.prometheus.url
    drawn = list(preview.draw(dashboards.DASHBOARDS, url, tmp_path, seconds=5, scrape_s=SCRAPE_S))
    assert sorted(path.name for path in drawn) == sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == len(dashboards.DASHBOARDS)
    for path in drawn:
        with Image.open(path) as picture:
            assert picture.width == preview.WIDE
