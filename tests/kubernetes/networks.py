"""Networks of pods: this machine's loopback for all, or a network namespace for each.

In namespaces no address is replaced: processes listen at the ports of the manifests, and resolve Services by name in a
hosts file. A bridge in one more namespace, the node, connects the pods: probes come from there. The test's own
namespace, with its interfaces and addresses, does not change.
"""

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Protocol, Self

import pytest

from kubernetes.manifests import Object, named, of_kind
from support.processes import free_port

CLONE_NEWNET = 0x40000000  # linux/sched.h
NETNS = Path("/run/netns")  # folder of `ip netns`
ETC = Path("/etc/netns")  # files in NAME/ replace those in /etc for `ip netns exec NAME`
SUBNET = "10.96.0"


class Network(Protocol):
    """The network of pods; its context removes it. Pods are called COMPONENT-INDEX."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def join(self, pod: str) -> None:
        """Give it an address, if it has none: its replacement has the same."""

    def command(self, pod: str, words: Sequence[str]) -> list[str]:
        """The command that starts a process there."""

    def in_its_place(self, pod: str, text: str) -> str:
        """A word or variable of one of its containers, with its local addresses."""

    def reached(self, pod: str, port: int) -> AbstractContextManager[str]:
        """URL of one of its ports, without a path. The calling thread reaches it in the context."""


class Loopback:
    """Replaces tcp://SERVICE:PORT and 0.0.0.0:PORT by 127.0.0.1 and a free port."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self._objects = objects
        self._ports: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def join(self, pod: str) -> None:
        pass

    def command(self, pod: str, words: Sequence[str]) -> list[str]:
        return [*words]

    def in_its_place(self, pod: str, text: str) -> str:
        def local(found: re.Match[str]) -> str:
            scheme, host, number = found[1] or "", found[2], int(found[3])
            if host == "0.0.0.0":
                return f"{scheme}127.0.0.1:{self._port(pod, number)}"
            return f"{scheme}127.0.0.1:{self._port(*self._behind(host, number))}"

        return re.sub(r"(tcp://)?\b(unstale-[\w-]+|0\.0\.0\.0):(\d+)", local, text)

    @contextmanager
    def reached(self, pod: str, port: int) -> Iterator[str]:
        yield f"http://127.0.0.1:{self._port(pod, port)}"

    def _port(self, pod: str, number: int) -> int:
        return self._ports.setdefault((pod, number), free_port())

    def _behind(self, service: str, number: int) -> tuple[str, int]:
        """The pod and port behind a port of a Service."""
        chosen = named(self._objects, "Service", service)["spec"]
        target = next(port["targetPort"] for port in chosen["ports"] if port["port"] == number)
        (found,) = [
            port["containerPort"]
            for one in self._objects
            if one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels") == chosen["selector"]
            for port in one["spec"]["template"]["spec"]["containers"][0]["ports"]
            if port["name"] == target
        ]
        return behind(chosen), found


class Namespaces:
    """A network namespace for each pod. Needs root, `ip`, and a kernel with bridges and veth pairs."""

    _numbers = itertools.count()

    def __init__(self, objects: Sequence[Object]) -> None:
        self._objects = objects
        self.name = f"unstale-{os.getpid()}-{next(self._numbers)}"
        self._node = f"{self.name}-node"
        self._hosts: dict[str, int] = {}  # last part of a pod's address
        self._joined: set[str] = set()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        try:
            if not ETC.exists():
                ETC.mkdir(exist_ok=True)
                self._undo.callback(_remove_if_empty, ETC)
            self._make(self._node)
            ip("-n", self._node, "link", "add", "pods", "type", "bridge")
            ip("-n", self._node, "address", "add", f"{SUBNET}.1/24", "dev", "pods")
            ip("-n", self._node, "link", "set", "pods", "up")
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def join(self, pod: str) -> None:
        if pod in self._joined:
            return
        self._joined.add(pod)
        inside, outside = self._of(pod), f"pod{self._host(pod)}"
        self._make(inside)
        ip("link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", outside, "netns", self._node)
        ip("-n", self._node, "link", "set", outside, "master", "pods", "up")
        ip("-n", inside, "address", "add", f"{self._address(pod)}/24", "dev", "eth0")
        ip("-n", inside, "link", "set", "eth0", "up")

    def command(self, pod: str, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._of(pod), *words]  # `ip` replaces itself by the command

    def in_its_place(self, pod: str, text: str) -> str:
        return text

    @contextmanager
    def reached(self, pod: str, port: int) -> Iterator[str]:
        with entered(self._node):
            yield f"http://{self._address(pod)}:{port}"

    def _of(self, pod: str) -> str:
        return f"{self.name}-{pod}"

    def _host(self, pod: str) -> int:
        return self._hosts.setdefault(pod, len(self._hosts) + 2)

    def _address(self, pod: str) -> str:
        return f"{SUBNET}.{self._host(pod)}"

    def _make(self, name: str) -> None:
        """Create a namespace with names of Services, and without DNS."""
        files = ETC / name
        self._undo.callback(shutil.rmtree, files, ignore_errors=True)
        files.mkdir(parents=True)
        services = [
            f"{self._address(behind(one['spec']))} {one['metadata']['name']}"
            for one in of_kind(self._objects, "Service")
        ]
        (files / "hosts").write_text("\n".join(["127.0.0.1 localhost", *services, ""]))
        (files / "resolv.conf").write_text("")
        ip("netns", "add", name)
        self._undo.callback(ip, "netns", "delete", name)
        ip("-n", name, "link", "set", "lo", "up")


def behind(service: Object) -> str:
    """The first pod behind a Service. service: its spec."""
    return f"{service['selector']['app.kubernetes.io/component']}-0"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=60)


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Move only the calling thread into a network namespace."""
    with open("/proc/thread-self/ns/net") as before, open(NETNS / name) as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another test process uses it
        folder.rmdir()


@cache
def allowed() -> bool:
    """Whether network namespaces can be created here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Namespaces([]) as network:
            network.join("tried-0")
            subprocess.run(network.command("tried-0", ["true"]), check=True, capture_output=True, timeout=60)
            with network.reached("tried-0", 80):
                pass
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def need_namespaces() -> None:
    """Skip the test without network namespaces. Not a mark, because it tries to create one."""
    if not allowed():
        pytest.skip("network namespaces cannot be made here: that takes root and iproute2")


def best() -> type[Network]:
    """Namespaces where they are allowed, else loopback."""
    return Namespaces if allowed() else Loopback
