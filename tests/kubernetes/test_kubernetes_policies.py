"""Network policies: the allowed connections, their ports, and no others."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kubernetes.manifests import (
    OVERLAYS,
    Object,
    Workload,
    carries,
    composed,
    named,
    of_kind,
    overlay,
    pods_of,
    ports_of,
    workloads,
)

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def policies(objects: Sequence[Object]) -> list[Object]:
    return [one["spec"] for one in of_kind(objects, "NetworkPolicy")]


def numbers(rule: Object) -> list[int]:
    return [one["port"] for one in rule["ports"]]


@every_overlay
def test_every_policy_port_is_a_number_of_a_selected_pod(name: str) -> None:
    # A number, since not every network plugin resolves port names of the other pods.
    objects = overlay(name)
    pods = workloads(objects)
    for policy in policies(objects):
        own = pods_of(pods, policy["podSelector"]["matchLabels"])
        for rule in policy.get("ingress", []):
            for port in numbers(rule):
                assert port == 9465 or any(port in ports_of(pod).values() for pod in own)  # of an injector
        for rule in policy.get("egress", []):
            for peer in rule["to"]:
                for pod in pods_of(pods, peer["podSelector"]["matchLabels"]) if "podSelector" in peer else []:
                    assert set(numbers(rule)) <= set(ports_of(pod).values())


@every_overlay
def test_a_process_reaches_only_its_peers(name: str) -> None:
    objects = overlay(name)
    pods = {one.component: one for one in workloads(objects)}
    through = "injector" if "injector" in pods else "server"
    wanted = {("client", through)} | ({("injector", "server")} if through == "injector" else set())
    found = {
        (source, target)
        for source in pods
        for target in pods
        if any(may(objects, pods[source], pods[target], port) for port in ports_of(pods[target]).values())
    }
    assert found == wanted


def test_prometheus_reaches_only_the_metrics_of_every_pod() -> None:
    objects = overlay("lossy")
    for pod in workloads(objects):
        found = [
            (peer["namespaceSelector"]["matchLabels"], port)
            for rule, peer in rules(objects, pod, "ingress", "from")
            if "namespaceSelector" in peer
            for port in numbers(rule)
            if port in ports_of(pod).values()
        ]
        assert found == [({"kubernetes.io/metadata.name": "monitoring"}, ports_of(pod)["http"])]


def test_clients_outside_the_cluster_reach_only_the_update_port(tmp_path: Path) -> None:
    objects = composed(tmp_path / "mine", "outside")
    (server,) = [one for one in workloads(objects) if one.component == "server"]
    service = named(objects, "Service", "unstale-server-outside")["spec"]
    assert carries(server.labels, service["selector"])
    assert [ports_of(server)[port["targetPort"]] for port in service["ports"]] == [5555]
    for pod in workloads(objects):
        open_to_all = [rule for rule, peer in rules(objects, pod, "ingress", "from") if "ipBlock" in peer]
        assert [numbers(rule) for rule in open_to_all] == ([[5555]] if pod.component == "server" else [])


def may(objects: Sequence[Object], source: Workload, target: Workload, port: int) -> bool:
    """Whether policies of both sides allow connections of pods to a port of others."""

    def allows(one: Workload, direction: str, peers: str, other: Workload) -> bool:
        return any(
            carries(other.labels, peer["podSelector"]["matchLabels"]) and port in numbers(rule)
            for rule, peer in rules(objects, one, direction, peers)
            if "podSelector" in peer
        )

    return allows(source, "egress", "to", target) and allows(target, "ingress", "from", source)


def rules(objects: Sequence[Object], pod: Workload, direction: str, peers: str) -> Iterator[tuple[Object, Object]]:
    """Each rule of a pod's connections, with each of its peers."""
    own = [
        policy
        for policy in policies(objects)
        if direction.capitalize() in policy["policyTypes"] and carries(pod.labels, policy["podSelector"]["matchLabels"])
    ]
    assert any(not policy.get(direction) for policy in own), "no policy denies by default"
    for policy in own:
        for rule in policy.get(direction, []):
            for peer in rule[peers]:
                yield rule, peer
