"""Pods as local processes, started, probed and deleted by their manifests as in Kubernetes.

Commands, arguments and variables are those of the manifests. Only three things are replaced:

    a path of a volumeMount                     its folder in the pod's own folder
    addresses                                   those of `kubernetes.networks`; unchanged in network namespaces
    the image's entry point, and `unstale`      this Python's

A Secret's files are readable for the group, as from the kubelet with an fsGroup; a mounted Secret or ConfigMap consists
of links, as from the kubelet; a mount below a read-only one needs its mount point; a claim outlives its pod.
Namespaces, users and limits are not simulated.
"""

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

from kubernetes.manifests import K8S, Object, Workload, named
from kubernetes.networks import Loopback, Network
from support.kubectl import KUBECTL
from support.processes import START_S
from support.scrape import get
from unstale_client.net.clock import now_s

POLL_S = 0.02  # polling interval
ENTRY_POINT = ("unstale",)


class Cluster:
    """Shared parts of pods: objects, claims, a network. Its context ends all processes. folder: of all files."""

    def __init__(
        self, objects: Sequence[Object], folder: Path, network: Callable[[Sequence[Object]], Network] = Loopback
    ) -> None:
        self.objects = [*objects]
        self.folder = folder
        self.network = network(self.objects)
        self.pods: list[Pod] = []
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._put("unstale", f"{shlex.quote(sys.executable)} -m unstale")
        self._put("kubectl", shlex.quote(KUBECTL))

    def __enter__(self) -> Self:
        self.network.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for pod in self.pods:
                pod.kill()
        finally:
            self.network.__exit__()

    def make_keys(self, *arguments: str) -> None:
        """Apply the output of k8s/make-keys.sh."""
        done = subprocess.run(
            [str(K8S / "make-keys.sh"), *arguments, str(self.folder / "keys")],
            env={**os.environ, "PATH": self.path},
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        assert done.returncode == 0, done.stderr
        self.objects += yaml.safe_load_all(done.stdout)

    @property
    def path(self) -> str:
        """PATH with the tests' `unstale` and `kubectl`."""
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def start(self, workload: Workload, index: int = 0) -> "Pod":
        """Start a pod: run its init containers to their ends, then its container."""
        pod = Pod(self, workload, index)
        self.pods.append(pod)
        pod.start()
        return pod

    def _put(self, name: str, command: str) -> None:
        shim = self.bin / name
        shim.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        shim.chmod(0o755)


class Pod:
    """One pod. index: ordinal of a StatefulSet, completion index of a Job."""

    def __init__(self, cluster: Cluster, workload: Workload, index: int) -> None:
        self._cluster = cluster
        self._workload = workload
        self._index = index
        self.name = f"{workload.component}-{index}"
        self._root = cluster.folder / "pods" / self.name  # paths are the same in every pod of that name
        self._logs = cluster.folder / "logs" / f"{self.name}.{len(cluster.pods)}"
        (self._container,) = workload.spec["containers"]
        self.process: subprocess.Popen[bytes]

    # --- life cycle ---

    def start(self) -> None:
        self._cluster.network.join(self.name)
        shutil.rmtree(self._root, ignore_errors=True)  # of the previous pod
        self._logs.mkdir(parents=True)
        self._volumes = {one["name"]: self._volume(one) for one in self._workload.spec["volumes"]}
        for claim in self._workload.owner["spec"].get("volumeClaimTemplates", []):
            path = self._cluster.folder / "claims" / f"{claim['metadata']['name']}-{self.name}"
            path.mkdir(parents=True, exist_ok=True)
            self._volumes[claim["metadata"]["name"]] = path
        for box in self._workload.spec.get("initContainers", []):
            done = self._begin(box, "init").wait(START_S)
            assert done == 0, self.errors()
        self.process = self._begin(self._container, "main")

    def delete(self) -> int:
        """End it like `kubectl delete pod`: SIGTERM, and SIGKILL after the grace period. Return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self._workload.spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode

    def kill(self) -> None:
        """Kill it, as after the loss of its node."""
        if hasattr(self, "process") and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(START_S)

    def end(self) -> int:
        """Wait for its own end; return the exit code."""
        return self.process.wait(START_S)

    # --- state ---

    def probe(self, kind: str) -> bool:
        """Run one probe of the kubelet. kind: `startupProbe`, `livenessProbe` or `readinessProbe`."""
        asked = self._container[kind]["httpGet"]
        try:
            with self.http(asked["port"]) as url:
                return 200 <= get(f"{url}{asked['path']}").status < 400
        except OSError:
            return False

    def http(self, port: str = "http") -> AbstractContextManager[str]:
        """URL of one of its ports, without a path, reachable in the context."""
        (number,) = [one["containerPort"] for one in self._container["ports"] if one["name"] == port]
        return self._cluster.network.reached(self.name, number)

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Fail when the pod's process ends first, or it takes too long."""
        until_s = now_s() + START_S
        pause = threading.Event()
        while not holds():
            assert self.process.poll() is None, f"{self.name} has ended, {what}: {self.errors()}"
            assert now_s() < until_s, f"{self.name}: {what} takes too long: {self.errors()}"
            pause.wait(POLL_S)

    def is_started(self) -> None:
        """Wait for its startup probe."""
        self.wait(partial(self.probe, "startupProbe"), "until it is started")

    def is_ready(self) -> None:
        self.wait(partial(self.probe, "readinessProbe"), "until it is ready")

    def facts(self) -> list[dict[str, Any]]:
        """Its printed JSON lines."""
        return [json.loads(line) for line in (self._logs / "stdout").read_text().splitlines() if line.startswith("{")]

    def errors(self) -> str:
        return "".join(file.read_text() for file in sorted(self._logs.glob("*.stderr")))

    @property
    def claim(self) -> Path:
        """The folder of its only claim."""
        (claim,) = self._workload.owner["spec"]["volumeClaimTemplates"]
        return self._volumes[claim["metadata"]["name"]]

    def path(self, path: str, role: str = "main") -> Path:
        """The local path of a path of its container, or of its init containers with the role `init`."""
        return self._root / role / path.removeprefix("/")

    # --- volumes ---

    def _volume(self, volume: Object) -> Path:
        path: Path = self._root / "volumes" / volume["name"]
        path.mkdir(parents=True)
        if "secret" in volume:
            about = volume["secret"]
            data = named(self._cluster.objects, "Secret", about["secretName"])["data"]
            files = {name: base64.b64decode(text) for name, text in data.items()}
            _write_as_links(path, files, about.get("defaultMode", 0o644) | 0o440)
        elif "configMap" in volume:
            about = named(self._cluster.objects, "ConfigMap", volume["configMap"]["name"])
            files = {name: text.encode() for name, text in about["data"].items()}
            _write_as_links(path, files, 0o644)
        return path

    def _mount(self, box: Object, root: Path, variables: dict[str, str]) -> dict[str, str]:
        """Local paths by the paths of the container's mounts."""
        placed: dict[str, str] = {}
        read_only: list[str] = []
        for mount in sorted(box["volumeMounts"], key=lambda one: one["mountPath"]):
            at = mount["mountPath"]
            inside = mount.get("subPath") or _expanded(mount.get("subPathExpr", ""), variables)
            source = self._volumes[mount["name"]] / inside
            assert source.exists(), f"{self.name}: there is no {inside} in {mount['name']}"
            place = root / at.removeprefix("/")
            below = [other for other in placed if at.startswith(f"{other}/")]
            if below and any(other in read_only for other in below):
                assert place.is_dir(), f"{at} is in a read-only mount without such a folder"
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir() and not place.is_symlink():
                place.rmdir()
            place.unlink(missing_ok=True)
            place.symlink_to(source)
            placed[at] = str(place)
            if mount.get("readOnly"):
                read_only.append(at)
        return placed

    # --- processes ---

    def _begin(self, box: Object, role: str) -> subprocess.Popen[bytes]:
        variables = {one["name"]: one["value"] for one in box.get("env", [])}
        if self._workload.kind == "Job":
            variables["JOB_COMPLETION_INDEX"] = str(self._index)  # the Job's controller adds it
        root = self._root / role
        mounts = self._mount(box, root, variables)
        put = partial(self._in_its_place, mounts)
        command = box.get("command", list(ENTRY_POINT)) + box.get("args", [])
        environment = {
            "PATH": self._cluster.path,
            "HOME": str(root),
            **{name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ},
            **{name: put(_expanded(value, variables)) for name, value in variables.items()},
        }
        with open(self._logs / "stdout", "ab") as out, open(self._logs / f"{box['name']}.stderr", "ab") as errors:
            return subprocess.Popen(
                self._cluster.network.command(self.name, [put(_expanded(word, variables)) for word in command]),
                env=environment,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,  # so that its child processes can be killed with it
            )

    def _in_its_place(self, mounts: dict[str, str], text: str) -> str:
        text = self._cluster.network.in_its_place(self.name, text)
        longest_first = "|".join(map(re.escape, sorted(mounts, key=len, reverse=True)))
        mentioned = rf"(?<![\w./-])({longest_first})(?=[/\s\"']|$)"
        return re.sub(mentioned, lambda found: mounts[found[1]], text)


def _write_as_links(path: Path, files: dict[str, bytes], mode: int) -> None:
    """Write files like the kubelet, which replaces all at once: NAME -> ..data/NAME, ..data -> ..now."""
    folder = path / "..now"
    folder.mkdir()
    (path / "..data").symlink_to("..now")
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(mode)
        (path / name).symlink_to(f"..data/{name}")


def _expanded(text: str, variables: dict[str, str]) -> str:
    """Expand $(NAME) like Kubernetes, which leaves unknown names unchanged."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)
