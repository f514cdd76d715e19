"""Network namespaces of pods: names resolve to the right one, and all are removed."""

import socket
import subprocess
import sys

import pytest

from kubernetes.manifests import Object
from kubernetes.networks import ETC, NETNS, Namespaces, entered, need_namespaces

pytestmark = pytest.mark.network

SERVICE: Object = {
    "kind": "Service",
    "metadata": {"name": "unstale-server"},
    "spec": {"selector": {"app.kubernetes.io/component": "server"}},
}


@pytest.fixture(autouse=True)
def _allowed() -> None:
    need_namespaces()


def remains(network: Namespaces) -> set[str]:
    """Its namespaces, and folders of files for them."""
    files = [path.name for folder in (NETNS, ETC) if folder.exists() for path in folder.iterdir()]
    return {name for name in files if name.startswith(f"{network.name}-")}


def test_a_process_resolves_only_service_names() -> None:
    ask = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
    with Namespaces([SERVICE]) as network:
        network.join("client-0")

        def answer(name: str) -> str:
            words = network.command("client-0", [sys.executable, "-c", ask, name])
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
            return done.stdout.strip()

        with network.reached("server-0", 9464) as url:
            assert url == f"http://{answer('unstale-server')}:9464"
        assert not answer("example.com")


def test_a_listener_is_reachable_from_other_namespaces_and_the_node() -> None:
    with Namespaces([SERVICE]) as network:
        for pod in ("server-0", "client-0"):
            network.join(pod)
        with entered(f"{network.name}-server-0"), socket.create_server(("0.0.0.0", 5555)) as listening:
            pass_on = ["-c", "import socket; socket.create_connection(('unstale-server', 5555), 60)"]
            subprocess.run(network.command("client-0", [sys.executable, *pass_on]), check=True, timeout=60)
            with network.reached("server-0", 5555) as url:
                address = url.removeprefix("http://").partition(":")[0]
                socket.create_connection((address, 5555), 60).close()
            for _ in range(2):
                listening.accept()[0].close()


def test_a_failed_test_leaves_no_interfaces_and_keeps_those_of_the_machine() -> None:
    before = socket.if_nameindex()
    network = Namespaces([SERVICE])
    with pytest.raises(ZeroDivisionError), network:  # noqa: PT012
        network.join("server-0")
        assert remains(network) == {f"{network.name}-node", f"{network.name}-server-0"}
        assert socket.if_nameindex() == before
        with network.reached("server-0", 9464):
            assert "pods" in [name for _, name in socket.if_nameindex()]
            raise ZeroDivisionError
    assert not remains(network)
    assert socket.if_nameindex() == before
