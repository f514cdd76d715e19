"""/metrics of a client process, with every number counted by hand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.running import PATIENCE_S, RunningServer, small, until
from support.scrape import families, get, sample
from support.wire import RawClient
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.metrics.catalogue import CLIENT_CATALOGUE

pytestmark = pytest.mark.network


@contextmanager
def clients(address: str, count: int) -> Iterator[str]:
    """Clients of one process, in a thread; returns the address of its metrics."""
    settings = small(clients=count)
    process = ClientProcess(
        server=address,
        client_ids=range(count),
        prepare=lambda received: training_context_of(received, settings),
        heartbeat_s=0.2,
        linger_s=PATIENCE_S,
        http_address="127.0.0.1:0",
    )
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    yield f"http://{process.http_address}"
    process.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_every_metric_of_two_clients_after_one_update_each() -> None:
    settings = small(clients=3, trigger={"name": "sync"}, policy={"name": "fedavg"})
    with RunningServer(settings) as server, RawClient(server.address, 2) as third, clients(server.address, 2) as http:
        third.join()
        until(lambda: sample(http, "unstale_client_updates_total", outcome="accepted", reason="") == 2)
        model_bytes = 4 * 650
        assert sample(http, "unstale_client_sessions", state="in") == 2
        assert sample(http, "unstale_client_sessions", state="away") == 0
        assert sample(http, "unstale_client_welcomes_total") == 2
        assert sample(http, "unstale_client_tasks_total", outcome="trained") == 2
        assert sample(http, "unstale_client_training_duration_seconds_count") == 2
        assert sample(http, "unstale_client_acknowledge_duration_seconds_count") == 2
        assert sample(http, "unstale_client_updates_sent_total") == 2
        assert sample(http, "unstale_client_updates_kept") == 0
        assert sample(http, "unstale_client_payload_bytes_total", direction="received") == 2 * model_bytes
        assert sample(http, "unstale_client_payload_bytes_total", direction="sent") == 2 * model_bytes
        assert get(f"{http}/readyz") == (200, "ok\n")
        assert get(f"{http}/healthz") == (200, "ok\n")
        assert {metric.name.removesuffix("_total") for metric in CLIENT_CATALOGUE} <= set(families(http))


def test_a_client_without_a_server_is_healthy_but_not_ready() -> None:
    with clients("tcp://127.0.0.1:9", 1) as http:
        assert get(f"{http}/healthz").status == 200
        assert get(f"{http}/readyz") == (503, "not yet\n")
        assert sample(http, "unstale_client_sessions", state="away") == 1
        assert get(f"{http}/").text == "there is /metrics, /healthz and /readyz\n"
