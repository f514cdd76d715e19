"""The scrape configurations: Prometheus accepts them, and they name the addresses of `unstale`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from support.prometheus import MONITORING, PROMTOOL, needs_prometheus
from unstale.config import Settings

STATIC, KUBERNETES = MONITORING / "prometheus.yml", MONITORING / "kubernetes.yml"
POD = "__meta_kubernetes_pod_"


def promtool(*arguments: str | Path) -> str:
    assert PROMTOOL is not None
    found = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def of_pods(folder: Path, *pods: dict[str, str]) -> Path:
    """The configuration for Kubernetes with a list in place of the cluster, since some builds of Prometheus lack its
    discovery. pods: labels as from the discovery."""
    read = yaml.safe_load(KUBERNETES.read_text())
    read["rule_files"] = [str(MONITORING / "rules/*.rules.yml")]
    (job,) = read["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [
        {"role": "pod", "selectors": [{"role": "pod", "label": "app.kubernetes.io/name=unstale"}]}
    ]
    job["static_configs"] = [
        {"targets": [f"10.0.0.{number}:80"], "labels": labels} for number, labels in enumerate(pods)
    ]
    made = folder / "prometheus.yml"
    made.write_text(yaml.safe_dump(read))
    return made


def pod(component: str, *, port: str = "http", phase: str = "Running") -> dict[str, str]:
    return {
        "__meta_kubernetes_namespace": "lab",
        f"{POD}name": f"unstale-{component}-0",
        f"{POD}phase": phase,
        f"{POD}container_port_name": port,
        f"{POD}label_app_kubernetes_io_component": component,
    }


@needs_prometheus
def test_prometheus_accepts_the_configuration_with_its_rules() -> None:
    assert "1 rule files found" in promtool("check", "config", STATIC)


def test_static_targets_are_the_ports_of_server_injector_and_clients() -> None:
    jobs: dict[str, Any] = {
        job["job_name"]: job["static_configs"] for job in yaml.safe_load(STATIC.read_text())["scrape_configs"]
    }
    settings = Settings()
    assert jobs["unstale-server"] == [{"targets": [settings.server.http_address]}]
    assert jobs["unstale-injector"] == [{"targets": [settings.injector.http_address]}]
    described = type(settings.client).model_fields["http_address"].description
    ((client,),) = (one["targets"] for one in jobs["unstale-client"])
    assert described is not None and client in described


@needs_prometheus
def test_only_our_pods_become_targets_of_the_jobs_in_the_rules(tmp_path: Path) -> None:
    components = ["server", "client", "injector"]
    wanted = [pod(component) for component in components]
    others = [pod("server", port="updates"), pod("client", phase="Succeeded"), pod("client", phase="Failed")]
    configuration = of_pods(tmp_path, *wanted, *others)
    found = json.loads(promtool("check", "service-discovery", "--timeout=5s", configuration, "unstale"))
    assert len(found) == len(wanted) + len(others)
    targets = [target["labels"] for target in found if target["labels"]]
    assert {(one["job"], one["namespace"], one["pod"]) for one in targets} == {
        (f"unstale-{component}", "lab", f"unstale-{component}-0") for component in components
    }
