"""The manifests as kustomize builds them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.kubectl import built

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = sorted(folder.parent.name for folder in K8S.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(folder.parent.name for folder in K8S.glob("components/*/kustomization.yaml"))

Object = dict[str, Any]

MADE_BY_HAND = {  # by k8s/make-keys.sh
    ("Secret", "unstale-server-key"),
    ("Secret", "unstale-client-keys"),
    ("Secret", "unstale-injector-key"),
    ("ConfigMap", "unstale-admitted"),
    ("ConfigMap", "unstale-injector-public-key"),
}
"""Objects that the manifests name and do not contain."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that creates pods. kind, name: its own. template: of the pods. owner: the whole object."""

    kind: str
    name: str
    template: Object
    owner: Object

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.template["metadata"]["labels"]
        return found

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def spec(self) -> Object:
        found: Object = self.template["spec"]
        return found

    @property
    def containers(self) -> list[Object]:
        """Init containers first."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def overlay(name: str) -> list[Object]:
    return built(K8S / "overlays" / name)


def composed(
    folder: Path, *components: str, base: str = "base", config: dict[str, Object] | None = None
) -> list[Object]:
    """A user's kustomization: a base or overlay, components, and other configurations by their names."""
    folder.mkdir(parents=True)
    files = {name: f"{name.removeprefix('unstale-')}.yaml" for name in config or {}}
    for name, settings in (config or {}).items():
        (folder / files[name]).write_text(yaml.safe_dump(settings))
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "unstale",
        "resources": [os.path.relpath(K8S / base, folder.resolve())],
        "components": [os.path.relpath(K8S / "components" / name, folder.resolve()) for name in components],
        "configMapGenerator": [{"name": name, "behavior": "replace", "files": [file]} for name, file in files.items()],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return built(folder)


def workloads(objects: Sequence[Object]) -> list[Workload]:
    return [
        Workload(one["kind"], one["metadata"]["name"], one["spec"]["template"], one)
        for one in objects
        if "template" in one.get("spec", {})
    ]


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def pods_of(pods: Sequence[Workload], selector: dict[str, str]) -> list[Workload]:
    return [one for one in pods if carries(one.labels, selector)]


def ports_of(one: Workload) -> dict[str, int]:
    """Ports of its containers by name."""
    return {port["name"]: port["containerPort"] for box in one.containers for port in box.get("ports", [])}


def named(objects: Sequence[Object], kind: str, name: str) -> Object:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def variables(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container.get("env", [])}


def references(spec: Object) -> Iterator[tuple[str, str]]:
    """Kind and name of every object that the volumes and variables of a pod name."""
    for volume in spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        for source in container.get("envFrom", []):
            for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if key in source:
                    yield kind, source[key]["name"]
        for one in container.get("env", []):
            origin = one.get("valueFrom", {})
            for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                if key in origin:
                    yield kind, origin[key]["name"]


def carries(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return selector.items() <= labels.items()
