"""The control port: its answers, the accepted requests, and the errors for refused ones."""

import json
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.running import PATIENCE_S
from support.scrape import families, get, sample
from unstale.injector.api import BODY_BYTES_MAX
from unstale.injector.toxic_collection import ToxicCollection
from unstale_proto.messages import Bye, Heartbeat

pytestmark = pytest.mark.network


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Any


def ask(injecting: Any, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = Request(f"{injecting.http}{path}", data=data, method=method, headers=headers)
    try:
        with urlopen(request, timeout=PATIENCE_S) as answer:
            return Answer(answer.status, json.loads(answer.read()), answer.headers)
    except HTTPError as error:
        with error:
            return Answer(error.code, json.loads(error.read()), error.headers)


def test_a_toxic_is_added_changed_and_removed_while_messages_pass(inject: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    assert ask(injecting, "GET", "/toxics").body == []
    added = ask(injecting, "POST", "/toxics", {"type": "drop", "messages": ["heartbeat"]})
    assert added.status == 201
    assert added.body["name"] == "drop"
    client.say(Heartbeat(number=0, version=0))
    client.say(Bye(reason="first"))
    assert injecting.server.receives() == Bye(reason="first")
    changed = ask(injecting, "PATCH", "/toxics/drop", {"messages": ["bye"]})
    assert (changed.status, changed.body["messages"]) == (200, ["bye"])
    client.say(Bye(reason="second"))
    client.say(Heartbeat(number=1, version=0))
    assert injecting.server.receives() == Heartbeat(number=1, version=0)
    assert ask(injecting, "GET", "/toxics/drop").body == changed.body
    assert ask(injecting, "DELETE", "/toxics/drop").body == []
    client.say(Bye(reason="third"))
    assert injecting.server.receives() == Bye(reason="third")
    assert ask(injecting, "GET", "/state").body["faults"] == {"drop": 2}


def test_an_immediate_blackout_and_a_reset(inject: Any) -> None:
    injecting = inject({"type": "latency", "delay": 0.0})
    client = injecting.joined()
    made = ask(injecting, "POST", "/blackout", {"seconds": 1000, "clients": [0]})
    assert (made.status, made.body["type"], made.body["touches"]) == (201, "blackout", 1)
    client.say(Bye(reason="lost"))
    injecting.until(lambda numbers: numbers.faults.get("blackout") == 1)
    reset = ask(injecting, "POST", "/reset")
    assert [entry["name"] for entry in reset.body] == ["all/latency"]
    client.say(Bye(reason="heard"))
    assert injecting.server.receives() == Bye(reason="heard")


def test_a_name_with_a_slash_is_found(inject: Any) -> None:
    injecting = inject({"type": "drop"})
    for path in ("/toxics/all/drop", "/toxics/all%2Fdrop"):
        assert ask(injecting, "GET", path).body["type"] == "drop"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not JSON, expected a JSON object"),
        (b"\xff", "the body is not JSON, expected a JSON object"),
        (b'{"type": "drop", "toxicity": NaN}', "the body is not JSON, expected a JSON object"),
        (b"[" * 50_000, "the body is not JSON, expected a JSON object"),
        (b"", "the request has no body, expected a JSON object"),
        ({"type": "slo"}, "the toxic: unknown toxic 'slo'; did you mean 'slow'?"),
        ({"type": "drop", "toxicity": 1.5}, "the toxic (drop): toxicity is 1.5, expected at most 1"),
        ([1], "the toxic is [1], expected a mapping with a type"),
    ],
)
def test_an_invalid_request_gets_an_error_and_changes_nothing(body: Any, sentence: str, inject: Any) -> None:
    injecting = inject()
    answer = ask(injecting, "POST", "/toxics", body)
    assert (answer.status, answer.body) == (400, {"error": sentence})
    assert ask(injecting, "GET", "/toxics").body == []


def test_other_mistakes_have_distinct_statuses(inject: Any) -> None:
    injecting = inject()
    unknown = ask(injecting, "DELETE", "/toxics/x")
    assert (unknown.status, unknown.body) == (404, {"error": "there is no toxic 'x', and no other"})
    assert ask(injecting, "GET", "/").status == 404
    assert ask(injecting, "GET", "/toxics/").status == 404
    for method, path, allowed in (
        ("PUT", "/toxics", "GET, POST"),
        ("POST", "/toxics/x", "GET, PATCH, DELETE"),
        ("GET", "/blackout", "POST"),
        ("POST", "/state", "GET"),
    ):
        refused = ask(injecting, method, path, {} if method != "GET" else None)
        assert (refused.status, refused.headers["Allow"]) == (405, allowed)
    large = ask(injecting, "POST", "/toxics", b" " * (BODY_BYTES_MAX + 1))
    assert large.status == 413
    page = ask(injecting, "POST", "/toxics", {"type": "drop"}, Origin="http://example.com")
    assert page.status == 403
    assert ask(injecting, "GET", "/toxics").body == []


def test_a_delay_set_by_mistake_is_undone(inject: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    for method, path, body in (
        ("DELETE", "/toxics/latency", None),
        ("PATCH", "/toxics/latency", {"delay": 0.0}),
        ("POST", "/reset", None),
    ):
        ask(injecting, "POST", "/reset")
        ask(injecting, "POST", "/toxics", {"type": "latency", "delay": 3_600_000})
        sent = [Heartbeat(number=number, version=0) for number in range(3)]
        for message in sent:
            client.say(message)
        injecting.until(lambda numbers: numbers.in_flight_messages == 3)
        assert ask(injecting, method, path, body).status == 200
        client.say(Bye())
        assert [injecting.server.receives() for _ in range(4)] == [*sent, Bye()]


def test_no_request_ends_the_injector(inject: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    assert ask(injecting, "POST", "/blackout", {"seconds": 10**400}).status == 400

    def raises(_: object) -> None:
        raise OverflowError("int too large to convert to float")

    with monkeypatch.context() as broken:
        broken.setattr("unstale.injector.proxy.Proxy.numbers", raises)
        answer = ask(injecting, "GET", "/state")
    sentence = "the request failed; the injector's log has the reason"
    assert (answer.status, answer.body) == (500, {"error": sentence})
    assert "int too large" in caplog.text
    client.say(Bye())
    assert injecting.server.receives() == Bye()


def test_changes_are_computed_beside_the_messages(inject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    injecting = inject()
    client = injecting.joined()
    add = ToxicCollection.add

    def slowly(collection: ToxicCollection, entry: Any) -> str:
        client.say(Bye())  # passes during the computation of the change
        assert injecting.server.receives() == Bye()
        return add(collection, entry)

    monkeypatch.setattr(ToxicCollection, "add", slowly)
    assert ask(injecting, "POST", "/toxics", {"type": "drop"}).status == 201


def test_waiting_bytes_are_unaffected_by_changes_of_message_toxics(
    inject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    injecting = inject(tcp=True)
    changes: list[Any] = []
    monkeypatch.setattr(injecting.injector._relay, "change", changes.append)
    ask(injecting, "POST", "/toxics", {"type": "drop"})
    assert changes == []
    ask(injecting, "POST", "/toxics", {"type": "bandwidth", "bytes_per_s": 1e6, "layer": "tcp"})
    assert [[one.toxic.type for one in toxics] for toxics in changes] == [["bandwidth"]]


def test_a_reused_name_counts_from_zero(inject: Any) -> None:
    injecting = inject()
    client = injecting.joined()
    for turn in range(1, 3):
        ask(injecting, "POST", "/toxics", {"type": "drop", "name": "mine"})
        client.say(Heartbeat(number=turn, version=0))
        numbers = injecting.until(lambda numbers: numbers.touched["mine"] == 1)
        assert numbers.faults == {"drop": turn}
        ask(injecting, "DELETE", "/toxics/mine")
        assert injecting.numbers().touched == {}


def test_the_injector_is_healthy_while_its_threads_answer(inject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    injecting = inject(tcp=True)
    assert ask(injecting, "GET", "/healthz").body == "ok"
    monkeypatch.setattr("unstale.injector.calls.ANSWER_S", 0.01)
    monkeypatch.setattr(injecting.injector._relay._queue, "post", lambda _: None)
    stuck = ask(injecting, "GET", "/healthz")
    monkeypatch.undo()
    assert (stuck.status, stuck.body) == (503, {"error": "the injector's relay does not answer"})


@pytest.mark.parametrize("digits", [19, 5000])
def test_an_invalid_length_is_refused(digits: int, inject: Any) -> None:
    injecting = inject()
    length = "1" * digits
    answer = ask(injecting, "POST", "/toxics", b"{}", **{"Content-Length": length})
    assert (answer.status, answer.body) == (400, {"error": "Content-Length is not a number of bytes"})


def test_metrics_match_the_catalogue(inject: Any) -> None:
    injecting = inject(
        {"type": "drop", "messages": ["heartbeat"]}, {"type": "latency", "delay": 0.02, "messages": ["bye"]}
    )
    client = injecting.joined()
    client.say(Heartbeat(number=0, version=0))
    client.say(Bye())
    assert injecting.server.receives() == Bye()
    http = injecting.http
    from unstale.metrics.catalogue import INJECTOR_CATALOGUE

    found = {name: family for name, family in families(http).items() if not name.startswith("process_")}
    assert {name.removesuffix("_total") for name in found} == {
        metric.name.removesuffix("_total") for metric in INJECTOR_CATALOGUE
    }
    for metric in INJECTOR_CATALOGUE:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
    assert sample(http, "unstale_injected_faults_total", toxic="drop") == 1
    assert sample(http, "unstale_injected_faults_total", toxic="latency") == 1
    assert sample(http, "unstale_injector_connections") == 1
    assert sample(http, "unstale_injector_in_flight_messages") == 0
    assert sample(http, "unstale_injected_delay_seconds_count") == 3  # hello, welcome, bye
    assert sample(http, "unstale_injected_delay_seconds_bucket", le="0.01") == 2
    assert sample(http, "unstale_injected_delay_seconds_bucket", le="0.025") == 3
    assert sample(http, "unstale_injected_delay_seconds_sum") == pytest.approx(0.02)
    assert get(f"{http}/healthz").status == 200
