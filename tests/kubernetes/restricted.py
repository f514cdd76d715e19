"""The restricted profile of the Kubernetes Pod Security Standards for pods of Linux, and our further rules.

Source: Kubernetes documentation, Pod Security Standards, "Baseline" and "Restricted".
"""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
PROFILES = ("RuntimeDefault", "Localhost")


def violations(spec: Object) -> list[str]:
    """Violations of the profile in a pod, a sentence each. spec: of the pod."""
    return [*_of_pod(spec), *(found for one in _containers(spec) for found in _of_container(one, spec))]


def beyond(spec: Object) -> list[str]:
    """Violations of our further rules."""
    found = []
    if spec.get("automountServiceAccountToken") is not False:
        found.append("the pod is given a token of the API server")
    if spec.get("enableServiceLinks") is not False:
        found.append("the pod is given variables of every Service")
    sized = all("sizeLimit" in one["emptyDir"] for one in spec.get("volumes", []) if "emptyDir" in one)
    if not sized:
        found.append("an emptyDir has no sizeLimit")
    for one in _containers(spec):
        name, own = one["name"], one.get("securityContext", {})
        if own.get("readOnlyRootFilesystem") is not True:
            found.append(f"{name}: its root file system can be written to")
        resources = one.get("resources", {})
        if not {"cpu", "memory", "ephemeral-storage"} <= resources.get("requests", {}).keys():
            found.append(f"{name}: does not say what it needs")
        found += [
            f"{name}: {what} has no limit"
            for what in ("memory", "ephemeral-storage")
            if what not in resources.get("limits", {})
        ]
    return found


def _containers(spec: Object) -> list[Object]:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [one for kind in kinds for one in spec.get(kind, [])]


def _of_pod(spec: Object) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"{key} is set"
    context = spec.get("securityContext", {})
    if context.get("sysctls"):
        yield "sysctls are set"
    for volume in spec.get("volumes", []):
        others = volume.keys() - VOLUMES - {"name"}
        if others:
            yield f"volume {volume['name']} is a {min(others)}"


def _of_container(one: Object, spec: Object) -> Iterator[str]:
    pod, own, name = spec.get("securityContext", {}), one.get("securityContext", {}), one["name"]
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot is not true"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f"{name}: runs as root"
    profile = own.get("seccompProfile", pod.get("seccompProfile", {}))
    if profile.get("type") not in PROFILES:
        yield f"{name}: no seccomp profile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name}: capabilities are not dropped"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities are added"
    if any("hostPort" in port for port in one.get("ports", [])):
        yield f"{name}: takes a port of the host"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount is set"
