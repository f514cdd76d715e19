"""The examiner of pods: it detects each violation of the restricted profile."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kubernetes.restricted import beyond, violations

Object = dict[str, Any]

GOOD: Object = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "one",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "resources": {
                "requests": {"cpu": 1, "memory": 1, "ephemeral-storage": 1},
                "limits": {"memory": 1, "ephemeral-storage": 1},
            },
        }
    ],
    "volumes": [{"name": "some", "emptyDir": {"sizeLimit": "1Mi"}}],
}


def test_a_valid_pod_passes() -> None:
    assert violations(GOOD) == beyond(GOOD) == []


def own(**changes: Any) -> Callable[[Object], None]:
    return lambda pod: pod["containers"][0]["securityContext"].update(changes)


def pod_wide(**changes: Any) -> Callable[[Object], None]:
    return lambda pod: pod.update(changes)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (pod_wide(hostNetwork=True), "hostNetwork is set"),
        (pod_wide(hostPID=True), "hostPID is set"),
        (pod_wide(volumes=[{"name": "node", "hostPath": {"path": "/"}}]), "volume node is a hostPath"),
        (pod_wide(securityContext={"runAsNonRoot": True}), "one: no seccomp profile"),
        (pod_wide(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}), "one: runAsNonRoot is not true"),
        (pod_wide(initContainers=[{"name": "first"}]), "first: capabilities are not dropped"),
        (own(seccompProfile={"type": "Unconfined"}), "one: no seccomp profile"),
        (own(runAsUser=0), "one: runs as root"),
        (own(runAsNonRoot=False), "one: runAsNonRoot is not true"),
        (own(privileged=True), "one: privileged"),
        (own(allowPrivilegeEscalation=None), "one: allowPrivilegeEscalation is not false"),
        (own(capabilities={"drop": ["NET_RAW"]}), "one: capabilities are not dropped"),
        (own(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "one: capabilities are added"),
        (lambda pod: pod["containers"][0].update(ports=[{"hostPort": 80}]), "one: takes a port of the host"),
    ],
)
def test_violations_of_the_profile_are_detected(change: Callable[[Object], None], found: str) -> None:
    pod = copy.deepcopy(GOOD)
    change(pod)
    assert found in violations(pod)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (pod_wide(automountServiceAccountToken=True), "the pod is given a token of the API server"),
        (pod_wide(enableServiceLinks=True), "the pod is given variables of every Service"),
        (pod_wide(volumes=[{"name": "some", "emptyDir": {}}]), "an emptyDir has no sizeLimit"),
        (own(readOnlyRootFilesystem=False), "one: its root file system can be written to"),
        (lambda pod: pod["containers"][0].pop("resources"), "one: memory has no limit"),
        (
            lambda pod: pod["containers"][0]["resources"]["requests"].pop("ephemeral-storage"),
            "one: does not say what it needs",
        ),
        (
            lambda pod: pod["containers"][0]["resources"]["limits"].pop("ephemeral-storage"),
            "one: ephemeral-storage has no limit",
        ),
    ],
)
def test_violations_of_our_further_rules_are_detected(change: Callable[[Object], None], found: str) -> None:
    pod = copy.deepcopy(GOOD)
    change(pod)
    assert violations(pod) == []
    assert found in beyond(pod)
