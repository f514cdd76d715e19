"""Validation of objects by the schemas of Kubernetes."""

import json
import re
from collections.abc import Sequence
from functools import cache

import kubernetes_validate

from kubernetes.manifests import ROOT, Object

MINORS = 3  # the latest ones, which the Kubernetes project supports


def versions() -> list[str]:
    """The latest minors, the newest first, and the oldest in the document."""
    latest = kubernetes_validate.latest_version()
    major, minor, _ = (int(part) for part in latest.split("."))
    promised = re.search(r"Kubernetes\s+(1\.\d+) or later", (ROOT / "docs/deploy.md").read_text(encoding="utf-8"))
    assert promised is not None
    return [*(f"{major}.{minor - back}" for back in range(MINORS)), promised[1]]


@cache
def check_valid(text: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def check_all_valid(objects: Sequence[Object]) -> None:
    """Fail on a field that is unknown, missing or of another type in one of the versions."""
    for one in objects:
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # of the Prometheus operator, without a schema of Kubernetes
        for version in versions():
            check_valid(json.dumps(one, sort_keys=True), version)  # most are the same in all overlays
