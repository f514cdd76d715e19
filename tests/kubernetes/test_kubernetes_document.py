"""The examples of `docs/deploy.md`: a user's own kustomization, and patches for the user's cluster."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubernetes.manifests import (
    K8S,
    ROOT,
    Object,
    Workload,
    built,
    carries,
    composed,
    named,
    of_kind,
    variables,
    workloads,
)
from kubernetes.validity import check_all_valid

TEXT = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
KUSTOMIZATION, PATCHES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def kustomization(folder: Path, **changes: Any) -> list[Object]:
    """Objects of the document's kustomization, beside this repository. changes: further keys."""
    folder.mkdir()
    content = yaml.safe_load(KUSTOMIZATION.replace("../unstale/", os.path.relpath(ROOT, folder.resolve()) + "/"))
    content["patches"] += changes.pop("patches", [])
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content | changes))
    (folder / "run.yaml").write_text("clients: 1000\n")
    (folder / "scenario.yaml").write_text("groups: [{name: everyone}]\n")
    objects = built(folder)
    check_all_valid(objects)
    return objects


def by_component(objects: list[Object]) -> dict[str, Workload]:
    return {one.component: one for one in workloads(objects)}


def test_the_kustomization_sets_image_size_and_data_set(tmp_path: Path) -> None:
    pods = by_component(kustomization(tmp_path / "mine"))
    job = pods["client"]
    assert job.owner["spec"]["completions"] * int(variables(job.containers[-1])["UNSTALE_CLIENT__COUNT"]) == 1000
    assert all(box["image"].startswith("registry.example.com/") for pod in pods.values() for box in pod.containers)
    for pod in pods.values():
        assert "/data-set" in [mount["mountPath"] for mount in pod.containers[-1]["volumeMounts"]]


def test_every_cluster_patch_changes_its_target(tmp_path: Path) -> None:
    before = kustomization(tmp_path / "before")
    objects = kustomization(tmp_path / "mine", patches=yaml.safe_load(PATCHES))
    assert of_kind(before, "Namespace")
    assert not of_kind(objects, "Namespace")
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        (one,) = of_kind(objects, kind)
        assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "unstale"
    policy = named(objects, "NetworkPolicy", "unstale-monitoring")["spec"]
    selected = policy["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"]
    assert selected == {"kubernetes.io/metadata.name": "observability"}
    (names,) = named(objects, "NetworkPolicy", "unstale-names")["spec"]["egress"]
    assert [port["port"] for port in names["ports"]] == [5353, 5353]
    pods = by_component(objects)
    assert {name: pod.spec.get("runtimeClassName") for name, pod in pods.items()} == {
        "server": "nvidia",
        "client": "nvidia",
        "injector": None,
    }


def test_another_run_is_entirely_in_another_namespace(tmp_path: Path) -> None:
    objects = kustomization(tmp_path / "mine", namespace="lab-2")
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["name"] == "lab-2"
    assert {one["metadata"]["namespace"] for one in objects if one is not namespace} == {"lab-2"}
    # In the namespace of the first run, Services would select both servers.
    first = by_component(composed(tmp_path / "first"))["server"]
    services = [one["spec"]["selector"] for one in of_kind(objects, "Service")]
    assert any(carries(first.labels, selector) for selector in services)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bk8s/[\w/.-]*[\w/]", TEXT))))
def test_every_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_pods_volumes_and_components_have_the_names_in_the_commands(tmp_path: Path) -> None:
    objects = composed(tmp_path / "all", "lossy", "outside")
    commands = "\n".join(re.findall(r"^ *```sh\n(.*?)^ *```", TEXT, re.MULTILINE | re.DOTALL))
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in objects}
    (server,) = of_kind(objects, "StatefulSet")
    (claim,) = server["spec"]["volumeClaimTemplates"]
    there |= {f"persistentvolumeclaim/{claim['metadata']['name']}-{server['metadata']['name']}-0"}
    there |= {f"pod/{yaml.safe_load((K8S / 'results.yaml').read_text())['metadata']['name']}"}
    content = set(re.findall(r"\b([a-z]+/unstale[\w-]+|[a-z]+/run-unstale[\w-]+)", commands))
    assert content
    assert content <= there
