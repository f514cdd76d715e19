"""The HTTP pages of a process, and their address."""

import socket
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from support.scrape import Page, families, get
from unstale.errors import UserError
from unstale.metrics.http import HttpService

pytestmark = pytest.mark.network

KEY = "server.http_address"


class State:
    healthy = True
    ready = False


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def service(state: State) -> Iterator[HttpService]:
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    made = HttpService("127.0.0.1:0", registry, key=KEY, healthy=lambda: state.healthy, ready=lambda: state.ready)
    yield made
    made.close()


def test_checks_run_for_each_request(service: HttpService, state: State) -> None:
    url = f"http://{service.address}"
    assert get(f"{url}/healthz") == Page(200, "ok\n")
    assert get(f"{url}/readyz") == Page(503, "not yet\n")
    state.healthy, state.ready = False, True
    assert get(f"{url}/healthz") == Page(503, "stuck\n")
    assert get(f"{url}/readyz") == Page(200, "ok\n")


def test_metrics_match_the_registry(service: HttpService) -> None:
    assert families(f"http://{service.address}")["answer"].samples[0].value == 42


@pytest.mark.parametrize("path", ["/", "/metrics/", "/healthz/x", "/../etc/passwd", "/%00"])
def test_any_other_path_is_not_found(path: str, service: HttpService) -> None:
    assert get(f"http://{service.address}{path}").status == 404


def test_the_port_is_free_again_after_closing() -> None:
    service = HttpService("127.0.0.1:0", CollectorRegistry(), key=KEY, healthy=bool, ready=bool)
    service.close()
    again = HttpService(service.address, CollectorRegistry(), key=KEY, healthy=bool, ready=bool)
    assert again.address == service.address
    again.close()


def test_a_port_in_use_gets_a_one_sentence_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            UserError, match=rf"^server\.http_address {address} cannot be used \(address already in use\)"
        ):
            HttpService(address, CollectorRegistry(), key=KEY, healthy=bool, ready=bool)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ""])
def test_an_invalid_address_gets_a_one_sentence_error(address: str) -> None:
    with pytest.raises(UserError, match=r"^server\.http_address is .*, expected HOST:PORT"):
        HttpService(address, CollectorRegistry(), key=KEY, healthy=bool, ready=bool)
