"""A scenario as objects of Chaos Mesh: exact translations, approximate ones, and parts left out."""

from math import sqrt
from typing import Any

import pytest

from unstale.toxics.bandwidth import Bandwidth
from unstale.toxics.chaos_mesh import INDEX_LABEL, Pods, Translation, _network_faults, duration, translated
from unstale.toxics.scenario import Scenario

PODS = Pods(clients=10, clients_each=2, namespace="here")


class Ten:
    """Ten clients without data."""

    clients = 10
    classes = 10

    def holders(self, label: int) -> Any:
        raise AssertionError

    def smallest_class(self, client_id: int) -> int:
        raise AssertionError


def translation(*toxics: dict[str, Any], pods: Pods = PODS, **group: Any) -> Translation:
    scenario = Scenario.parsed({"groups": [{"name": "everyone", "toxics": [*toxics], **group}]}, "the scenario")
    return translated(scenario.settled(Ten(), 0), pods)


def only(made: Translation) -> tuple[str, dict[str, Any], str]:
    """Kind, specification and remark of the one object."""
    assert made.left_out == ()
    (fault,) = made.faults
    return fault.manifest["kind"], fault.manifest["spec"], fault.remark


def labels(component: str) -> dict[str, Any]:
    chosen = {"app.kubernetes.io/name": "unstale", "app.kubernetes.io/component": component}
    return {"namespaces": ["here"], "labelSelectors": chosen}


def indices(selector: dict[str, Any]) -> list[str]:
    (expression,) = selector["expressionSelectors"]
    assert (expression["key"], expression["operator"]) == (INDEX_LABEL, "In")
    values: list[str] = expression["values"]
    return values


# --- the network ---


def test_a_delay_up_applies_to_the_traffic_sent_by_client_pods() -> None:
    kind, spec, remark = only(translation({"type": "latency", "direction": "up", "delay": 0.15}))
    assert (kind, remark) == ("NetworkChaos", "")
    assert spec == {
        "action": "delay",
        "selector": labels("client"),
        "mode": "all",
        "delay": {"latency": "150ms", "jitter": "0s", "correlation": "0"},
    }


def test_a_delay_down_applies_to_the_traffic_from_the_server_to_the_affected_pods() -> None:
    toxic = {"type": "latency", "direction": "down", "delay": 2, "clients": ["2-5"]}
    _, spec, _ = only(translation(toxic))
    assert spec["selector"] == labels("server")
    assert (spec["direction"], spec["target"]["mode"]) == ("to", "all")
    assert indices(spec["target"]["selector"]) == ["1", "2"]


def test_two_directions_make_two_objects_with_distinct_names() -> None:
    made = translation({"type": "latency", "delay": 1}, {"type": "latency", "delay": 2})
    assert [fault.manifest["spec"]["selector"] for fault in made.faults] == [labels("client"), labels("server")] * 2
    names = [fault.manifest["metadata"]["name"] for fault in made.faults]
    assert names == [
        "unstale-everyone-latency-up",
        "unstale-everyone-latency-down",
        "unstale-everyone-latency-2-up",
        "unstale-everyone-latency-2-down",
    ]
    assert {fault.manifest["metadata"]["namespace"] for fault in made.faults} == {"here"}


@pytest.mark.parametrize(
    ("delay", "latency", "jitter", "is_exact"),
    [
        ({"distribution": "uniform", "low_s": 0.1, "high_s": 0.3}, "200ms", "100ms", True),
        ({"distribution": "normal", "mean_s": 0.5, "deviation_s": 0}, "500ms", "0s", True),
        ({"distribution": "normal", "mean_s": 0.5, "deviation_s": 0.1 / sqrt(3)}, "500ms", "100ms", False),
    ],
)
def test_delays_are_spread_evenly_around_their_mean(
    delay: dict[str, Any], latency: str, jitter: str, is_exact: bool
) -> None:
    # An even spread of half width h has the deviation h / sqrt(3).
    _, spec, remark = only(translation({"type": "latency", "direction": "up", "delay": delay}))
    assert (spec["delay"]["latency"], spec["delay"]["jitter"]) == (latency, jitter)
    assert (remark == "") == is_exact


def test_message_loss_becomes_packet_loss_with_a_remark() -> None:
    _, spec, remark = only(translation({"type": "drop", "toxicity": 0.02, "direction": "up"}))
    assert spec["loss"] == {"loss": "2", "correlation": "0"}
    assert remark.startswith("packets are lost, not messages")


def test_a_bandwidth_per_client_becomes_a_bandwidth_per_pod() -> None:
    made = translation({"type": "bandwidth", "bytes_per_s": 1000, "clients": ["4-7"]})
    up, *down = [fault.manifest["spec"] for fault in made.faults]
    assert up["bandwidth"]["rate"] == "2000bps"  # bytes a second, for two clients
    assert (up["selector"]["labelSelectors"], indices(up["selector"])) == (
        labels("client")["labelSelectors"],
        ["2", "3"],
    )
    assert [indices(one["target"]["selector"]) for one in down] == [["2"], ["3"]]
    assert {fault.remark for fault in made.faults} == {"the 2 clients of a pod share a channel of 2 times the rate"}


def test_a_tcp_blackout_is_a_partition_of_the_same_duration() -> None:
    toxic = {"type": "blackout", "layer": "tcp", "end_s": 60, "direction": "up"}
    kind, spec, remark = only(translation(toxic))
    assert (kind, spec["action"], spec["duration"], remark) == ("NetworkChaos", "partition", "60s", "")
    assert (spec["selector"], spec["direction"], spec["target"]["selector"]) == (
        labels("server"),
        "from",
        labels("client"),
    )


def test_a_message_blackout_remarks_that_messages_are_not_lost() -> None:
    _, spec, remark = only(translation({"type": "blackout", "end_s": 60}))
    assert spec["direction"] == "both"
    assert remark == "messages are not lost: TCP sends them when the blackout is over"


# --- times ---


def test_a_toxic_that_starts_later_waits_in_a_workflow() -> None:
    toxic = {"type": "blackout", "layer": "tcp", "start_s": 300, "end_s": 360.5}
    kind, spec, _ = only(translation(toxic))
    assert (kind, spec["entry"]) == ("Workflow", "all")
    first, wait, fault = spec["templates"]
    assert (first["templateType"], first["children"]) == ("Serial", [wait["name"], fault["name"]])
    assert (wait["templateType"], wait["deadline"]) == ("Suspend", "300s")
    assert (fault["templateType"], fault["deadline"]) == ("NetworkChaos", "60500ms")
    assert fault["networkChaos"]["action"] == "partition"


def test_a_repeated_toxic_is_a_schedule() -> None:
    toxic = {"type": "blackout", "layer": "tcp", "start_s": 30, "end_s": 40, "every_s": 3600}
    kind, spec, remark = only(translation(toxic))
    assert (kind, spec["schedule"], spec["type"]) == ("Schedule", "@every 3600s", "NetworkChaos")
    assert spec["networkChaos"]["duration"] == "10s"
    assert remark == "the first begins 3600 s after it is applied"


def test_absent_clients_are_failing_pods() -> None:
    # 30 of 90 seconds away: a third of the pods at any time.
    kind, spec, remark = only(translation({"type": "dropout", "on_s": 60, "off_s": 30}))
    assert (kind, spec["schedule"], spec["type"]) == ("Schedule", "@every 30s", "PodChaos")
    fault = spec["podChaos"]
    assert (fault["action"], fault["mode"], fault["value"], fault["duration"]) == (
        "pod-failure",
        "fixed-percent",
        "33",
        "30s",
    )
    assert "33 % of the pods" in remark


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1.5, "1500ms"), (0.0005, "0.5ms"), (86400, "86400s"), (1e9, "1000000000s")]
)
def test_durations_have_the_format_of_go(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- parts left out ---


@pytest.mark.parametrize(
    ("toxic", "why"),
    [
        ({"type": "latency", "delay": {"distribution": "exponential", "mean_s": 1}}, "exponential"),
        ({"type": "latency", "delay": 1, "toxicity": 0.5}, "a share of 0.5"),
        ({"type": "latency", "delay": 1, "messages": ["task"]}, "it knows no messages"),
        ({"type": "duplicate"}, "dropped by TCP"),
        ({"type": "reorder", "delay": 1}, "in order again"),
        ({"type": "corrupt"}, "dropped by TCP"),
        ({"type": "disconnect"}, "breaks a connection"),
        ({"type": "slow", "factor": 2}, "no tasks"),
        ({"type": "dropout", "p": 0.5}, "it has no rounds"),
        ({"type": "dropout", "on_s": 1000, "off_s": 1}, "fewer than one pod"),
        ({"type": "latency", "delay": 1, "clients": ["0-2"]}, "client 3 is in pod 1, too"),
    ],
)
def test_an_untranslatable_toxic_is_reported_with_the_reason(toxic: dict[str, Any], why: str) -> None:
    made = translation(toxic)
    assert made.faults == ()
    (sentence,) = made.left_out
    assert sentence.startswith(f"toxic everyone/{toxic['type']} ({toxic['type']}): ")
    assert why in sentence


def test_devices_and_staleness_are_reported_as_left_out() -> None:
    made = translation(device={"task": 1}, stale_rounds=3)
    assert [sentence.partition(":")[0] for sentence in made.left_out] == ["devices", "stale_rounds"]


def test_the_last_pod_may_have_fewer_clients() -> None:
    pods = Pods(clients=10, clients_each=4, namespace="here")
    _, spec, _ = only(translation({"type": "latency", "delay": 1, "direction": "up", "clients": [8, 9]}, pods=pods))
    assert pods.count == 3
    assert indices(spec["selector"]) == ["2"]


def test_a_toxic_on_no_pod_has_no_object_per_pod() -> None:
    toxic = Bandwidth(bytes_per_s=1000.0, direction="down")
    assert list(_network_faults("bandwidth", {}, toxic, PODS, (), "")) == []
