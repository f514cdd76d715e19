"""Every overlay builds, is valid, and is consistent."""

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kubernetes.manifests import (
    COMPONENTS,
    K8S,
    MADE_BY_HAND,
    OVERLAYS,
    ROOT,
    Object,
    Workload,
    carries,
    composed,
    named,
    of_kind,
    overlay,
    pods_of,
    ports_of,
    references,
    variables,
    workloads,
)
from kubernetes.restricted import beyond, violations
from kubernetes.validity import check_all_valid, versions
from unstale.config import load
from unstale.config.keys import KEYS, variable
from unstale.config.scenario import read
from unstale.toxics.chaos_mesh import Pods

VARIABLES = {variable(key) for key in KEYS} | {"UNSTALE_CONFIG"}

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def test_every_object_is_valid_for_the_latest_kubernetes_versions() -> None:
    for name in OVERLAYS:
        check_all_valid(overlay(name))


@every_overlay
def test_every_pod_passes_the_restricted_profile_and_further_rules(name: str) -> None:
    found = workloads(overlay(name))
    assert {one.component for one in found} >= {"server", "client"}
    for one in found:
        assert violations(one.spec) == []
        assert beyond(one.spec) == []


@every_overlay
def test_the_namespace_enforces_the_restricted_profile_and_contains_all_objects(name: str) -> None:
    objects = overlay(name)
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [one for one in objects if one is not namespace]
    assert {one["metadata"]["namespace"] for one in others} == {namespace["metadata"]["name"]}


@every_overlay
def test_selectors_match_pods_and_every_pod_matches_its_own(name: str) -> None:
    objects = overlay(name)
    pods = workloads(objects)
    for pod in pods:
        selector = pod.owner["spec"].get("selector", {}).get("matchLabels", pod.labels)
        assert carries(pod.labels, selector)
    for service in of_kind(objects, "Service"):
        assert pods_of(pods, service["spec"]["selector"])
    for kind, where in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for one in of_kind(objects, kind):
            assert pods_of(pods, one["spec"][where]["matchLabels"])
    for monitor in of_kind(objects, "ServiceMonitor"):
        services = of_kind(objects, "Service")
        chosen = monitor["spec"]["selector"]["matchLabels"]
        assert any(carries(service["metadata"]["labels"], chosen) for service in services)
    for monitor in of_kind(objects, "PodMonitor"):
        assert pods_of(pods, monitor["spec"]["selector"]["matchLabels"])


@every_overlay
def test_every_named_port_belongs_to_the_selected_pods(name: str) -> None:
    objects = overlay(name)
    pods = workloads(objects)
    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            for pod in pods_of(pods, service["spec"]["selector"]):
                assert ports_of(pod)[port["targetPort"]] == port["port"]
    for pod in pods:
        for box in pod.spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert box[probe]["httpGet"]["port"] in ports_of(pod)
                assert box[probe]["httpGet"]["path"] in ("/healthz", "/readyz")
        annotations = pod.template["metadata"].get("annotations", {})
        assert annotations.get("prometheus.io/port", str(ports_of(pod)["http"])) == str(ports_of(pod)["http"])


@every_overlay
def test_processes_listen_and_connect_at_the_ports_of_pods_and_services(name: str) -> None:
    objects = overlay(name)
    services = {
        f"{service['metadata']['name']}:{port['port']}"
        for service in of_kind(objects, "Service")
        for port in service["spec"]["ports"]
    }
    for pod in workloads(objects):
        (box,) = pod.spec["containers"]
        values = variables(box)
        listening = {"server": "SERVER", "injector": "INJECTOR", "client": "CLIENT"}[pod.component]
        assert values[f"UNSTALE_{listening}__HTTP_ADDRESS"] == f"0.0.0.0:{ports_of(pod)['http']}"
        if pod.component != "client":
            assert values[f"UNSTALE_{listening}__ADDRESS"] == f"tcp://0.0.0.0:{ports_of(pod)['updates']}"
        for key in ("UNSTALE_CLIENT__SERVER", "UNSTALE_INJECTOR__UPSTREAM"):
            if key in values:
                assert values[key].removeprefix("tcp://") in services


@every_overlay
def test_references_of_pods_exist_or_are_created_by_the_documented_command(name: str) -> None:
    objects = overlay(name)
    there = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for pod in workloads(objects):
        missing = {reference for reference in references(pod.spec) if reference not in there}
        assert missing <= MADE_BY_HAND
        mounted = {mount["name"] for box in pod.containers for mount in box["volumeMounts"]}
        claims = pod.owner["spec"].get("volumeClaimTemplates", [])
        volumes = {one["name"] for one in pod.spec["volumes"]} | {one["metadata"]["name"] for one in claims}
        assert mounted == volumes
    assert not of_kind(objects, "Secret"), "a secret is in the repository"


@every_overlay
def test_variables_are_configuration_keys_and_their_files_are_mounted(name: str) -> None:
    for pod in workloads(overlay(name)):
        for box in pod.containers:
            mounts = [mount["mountPath"] for mount in box["volumeMounts"]]
            for key, value in variables(box).items():
                assert key in VARIABLES
                if value.startswith("/"):
                    assert any(value == at or value.startswith(f"{at}/") for at in mounts)


@every_overlay
def test_the_configuration_loads_with_as_many_clients_as_pods_serve(name: str, tmp_path: Path) -> None:
    objects = overlay(name)
    job = next(one for one in workloads(objects) if one.component == "client")
    (box,) = job.spec["containers"]
    each = int(variables(box)["UNSTALE_CLIENT__COUNT"])
    pods = job.owner["spec"]["completions"]
    assert job.owner["spec"]["parallelism"] == pods
    assert named(objects, "PodDisruptionBudget", "unstale-clients")["spec"]["minAvailable"] == pods - 1
    for one in workloads(objects):
        (main,) = one.spec["containers"]
        settings = load(config_of(objects, one, tmp_path), variables(main))
        if one.component != "client":
            assert settings.clients == pods * each
        if one.component == "client":
            settings.client.check_link()


def config_of(objects: Sequence[Object], pod: Workload, folder: Path) -> Path:
    """The file of the pod's UNSTALE_CONFIG."""
    (volume,) = [one for one in pod.spec["volumes"] if one["name"] == "config"]
    data = named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    file = folder / Path(variables(pod.spec["containers"][0])["UNSTALE_CONFIG"]).name
    file.write_text(data[file.name])
    return file


@every_overlay
def test_all_pods_use_one_image_of_this_version(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images = {box["image"] for pod in workloads(overlay(name)) for box in pod.containers}
    assert images == {f"unstale:{project['version']}" + ("-cuda" if name == "gpu" else "")}


def test_the_pods_run_as_the_user_of_the_image() -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    for pod in workloads(overlay("lossy")):
        context = pod.spec["securityContext"]
        assert [str(context[key]) for key in ("runAsUser", "runAsGroup")] == [*user.groups()]
        assert context["fsGroup"] == context["runAsGroup"]  # so that volumes are writable


def test_components_can_be_combined(tmp_path: Path) -> None:
    objects = composed(tmp_path / "all", *COMPONENTS)
    assert {one.component for one in workloads(objects)} == {"server", "client", "injector"}
    check_all_valid(objects)
    for pod in workloads(objects):
        assert pod.template["metadata"]["annotations"]["prometheus.io/scrape"] == "true"


def test_the_operator_loads_the_same_rules() -> None:
    (rules,) = of_kind(overlay("monitoring"), "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "monitoring/prometheus/rules/unstale.rules.yml").read_text())


def test_a_server_pod_with_a_refused_configuration_can_be_replaced() -> None:
    # With OrderedReady the controller waits for the pod that can never be ready: kubernetes issue 67250.
    (server,) = of_kind(overlay("local"), "StatefulSet")
    assert server["spec"]["podManagementPolicy"] == "Parallel"


@every_overlay
def test_a_server_pod_stays_after_its_run_for_any_user_setting(name: str) -> None:
    (server,) = [one for one in workloads(overlay(name)) if one.component == "server"]
    assert variables(server.containers[-1])["UNSTALE_SERVER__STAY"] == "true"


def test_prometheus_names_jobs_by_component() -> None:
    objects = overlay("monitoring")
    endpoints = [
        *of_kind(objects, "ServiceMonitor")[0]["spec"]["endpoints"],
        *of_kind(objects, "PodMonitor")[0]["spec"]["podMetricsEndpoints"],
    ]
    for endpoint in endpoints:
        (rule,) = endpoint["relabelings"]
        assert rule == {
            "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_component"],
            "targetLabel": "job",
            "replacement": "unstale-$1",
        }


def test_a_gpu_is_requested_where_the_taint_is_tolerated() -> None:
    for pod in workloads(overlay("gpu")):
        (box,) = pod.spec["containers"]
        assert box["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert [one["key"] for one in pod.spec["tolerations"]] == ["nvidia.com/gpu"]
        assert variables(box)["UNSTALE_DEVICE"] == "cuda"


def test_the_lossy_overlay_mounts_one_scenario_in_all_three_components(tmp_path: Path) -> None:
    objects = overlay("lossy")
    (config_map,) = [one for one in of_kind(objects, "ConfigMap") if "scenario.yaml" in one["data"]]
    file = tmp_path / "scenario.yaml"
    file.write_text(config_map["data"]["scenario.yaml"])
    assert [group.name for group in read(str(file)).groups] == ["everyone", "slow"]
    for pod in workloads(objects):
        assert ("ConfigMap", config_map["metadata"]["name"]) in references(pod.spec)
        (box,) = pod.spec["containers"]
        assert variables(box)["UNSTALE_SCENARIO__NAME"] == "/etc/unstale-scenario/scenario.yaml"


def test_a_client_pod_mounts_only_its_own_key() -> None:
    job = next(one for one in workloads(overlay("local")) if one.component == "client")
    mounts = [mount for box in job.containers for mount in box["volumeMounts"] if mount["name"] == "client-keys"]
    assert [mount["subPathExpr"] for mount in mounts] == ["clients-$(JOB_COMPLETION_INDEX).key_secret"]


def test_a_changed_configuration_changes_names_and_restarts_pods(tmp_path: Path) -> None:
    def name(rounds: int) -> str:
        objects = composed(tmp_path / str(rounds), config={"unstale-run": {"rounds": rounds}})
        return next(name for pod in workloads(objects) for _, name in references(pod.spec) if "run" in name)

    assert name(1) != name(2)


def test_the_results_pod_mounts_the_servers_volume() -> None:
    pod = yaml.safe_load((K8S / "results.yaml").read_text())
    check_all_valid([pod])
    assert violations(pod["spec"]) == beyond(pod["spec"]) == []
    (server,) = of_kind(overlay("local"), "StatefulSet")
    (claim,) = [one["metadata"]["name"] for one in server["spec"]["volumeClaimTemplates"]]
    claims = [one["persistentVolumeClaim"] for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"claimName": f"{claim}-{server['metadata']['name']}-0"}]
    assert {box["image"] for box in pod["spec"]["containers"]} == {
        server["spec"]["template"]["spec"]["containers"][0]["image"]
    }
    assert "namespace" not in pod["metadata"]  # the namespace depends on the run's name


def test_chaos_selects_pods_by_their_labels() -> None:
    pods = {one.component: one for one in workloads(overlay("local"))}
    where = Pods(clients=4, clients_each=2, namespace="unstale")
    for component in ("client", "server"):
        selector = where.selector(component)
        assert carries(pods[component].labels, selector["selector"]["labelSelectors"])
        assert selector["selector"]["namespaces"] == [pods[component].owner["metadata"]["namespace"]]


changes: list[tuple[Callable[[Object], Any], str]] = [
    (lambda pod: pod["spec"].update(replicas="one"), "replicas"),
    (lambda pod: pod["spec"].update(replica=1), "replica"),
]


@pytest.mark.parametrize(("change", "where"), changes)
def test_validation_detects_a_wrong_type_and_an_unknown_field(change: Callable[[Object], Any], where: str) -> None:
    # Otherwise the validity above would prove nothing.
    (one,) = of_kind(overlay("local"), "StatefulSet")
    change(one)
    with pytest.raises(kubernetes_validate.ValidationError, match=where):
        kubernetes_validate.validate(one, versions()[0], strict=True)
