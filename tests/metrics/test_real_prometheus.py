"""A real Prometheus reads what server, clients and injector tell, in the format that it takes."""

from pathlib import Path

import pytest

from support.prometheus import Prometheus, needs_prometheus
from support.running import RunningServer, small
from support.wire import RawClient
from unstale.metrics.catalogue import CATALOGUE

pytestmark = [pytest.mark.network, needs_prometheus]


def test_it_scrapes_a_server_and_knows_every_metric_by_kind_and_help(tmp_path: Path) -> None:
    with RunningServer(small()) as server, RawClient(server.address, 0) as client:
        client.join()
        with Prometheus(tmp_path, {"unstale-server": [str(server.server.http_address)]}) as prometheus:
            prometheus.until(lambda: prometheus.query("unstale_clients"), "the server is scraped")
            known = prometheus.get("metadata")
            for metric in CATALOGUE:
                (told,) = known[metric.name.removesuffix("_total")]  # which OpenMetrics has no part of
                assert (told["type"], told["help"]) == (metric.kind, metric.help)
            (run,) = prometheus.query("unstale_run_info")
            assert (run.labels["policy"], run.labels["model"], run.value) == ("fedbuff", "logreg", 1)
            (start,) = prometheus.query("time() - process_start_time_seconds")
            assert start.value > 0
