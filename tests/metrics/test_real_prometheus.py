"""A real Prometheus scrapes server, clients and injector in its format."""

from pathlib import Path

import pytest

from support.prometheus import Prometheus, needs_prometheus
from support.running import RunningServer, small
from support.wire import RawClient
from unstale.metrics.catalogue import CATALOGUE

pytestmark = [pytest.mark.network, needs_prometheus]


def test_prometheus_scrapes_every_metric_with_its_kind_and_help(tmp_path: Path) -> None:
    with RunningServer(small()) as server, RawClient(server.address, 0) as client:
        client.join()
        with Prometheus(tmp_path, {"unstale-server": [str(server.server.http_address)]}) as prometheus:
            prometheus.until(lambda: prometheus.query("unstale_clients"), "the server is scraped")
            known = prometheus.get("metadata")
            for metric in CATALOGUE:
                (described,) = known[metric.name.removesuffix("_total")]  # OpenMetrics names have no such suffix
                assert (described["type"], described["help"]) == (metric.kind, metric.help)
            (run,) = prometheus.query("unstale_run_info")
            assert (run.labels["policy"], run.labels["model"], run.value) == ("fedbuff", "logreg", 1)
            (start,) = prometheus.query("time() - process_start_time_seconds")
            assert start.value > 0
