"""`k8s/make-keys.sh`: it prints the objects of the manifests, and does not overwrite a folder of keys."""

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubernetes.kubelet import Cluster
from kubernetes.manifests import K8S, MADE_BY_HAND
from support.processes import START_S
from unstale.net.authorized_keys import AuthorizedKeys
from unstale_client.net import keys


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster([], tmp_path / "cluster")


def objects(cluster: Cluster) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one["data"] for one in cluster.objects}


def test_the_command_creates_exactly_the_secrets_of_the_manifests(cluster: Cluster) -> None:
    cluster.make_keys("--injector", "2", "3")
    assert objects(cluster).keys() == MADE_BY_HAND
    owners = AuthorizedKeys(cluster.folder / "keys/admitted").owners.values()
    assert {one.name: one.clients.text for one in owners} == {"clients-0": "0-2", "clients-1": "3-5", "injector": "all"}
    found = objects(cluster)
    assert found["Secret", "unstale-client-keys"].keys() == {"clients-0.key_secret", "clients-1.key_secret"}
    assert found["Secret", "unstale-server-key"].keys() == {"server.key_secret"}
    for (kind, _), data in found.items():
        for name, text in data.items():
            content = base64.b64decode(text).decode() if kind == "Secret" else text
            assert ("secret-key" in content) == (kind == "Secret"), name


def test_a_second_call_keeps_keys_and_adds_those_of_new_pods(cluster: Cluster) -> None:
    cluster.make_keys("1", "2")
    before = keys.identity(cluster.folder / "keys/clients-0.key_secret", "client.key")
    cluster.make_keys("2", "2")
    assert keys.identity(cluster.folder / "keys/clients-0.key_secret", "client.key") == before
    owners = AuthorizedKeys(cluster.folder / "keys/admitted").owners.values()
    assert [one.clients.text for one in owners] == ["0-1", "2-3"]


def test_a_revoked_key_is_replaced_and_others_are_kept(cluster: Cluster) -> None:
    cluster.make_keys("2", "2")
    folder = cluster.folder / "keys"
    before = [keys.identity(folder / f"clients-{pod}.key_secret", "client.key") for pod in range(2)]
    words = [str(cluster.bin / "unstale"), "keys", "revoke", "clients-1", "--folder", str(folder)]
    subprocess.run(words, check=True, capture_output=True, timeout=START_S)
    cluster.make_keys("2", "2")
    after = [keys.identity(folder / f"clients-{pod}.key_secret", "client.key") for pod in range(2)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    owners = AuthorizedKeys(folder / "admitted").owners
    assert {one.clients.text for one in owners.values()} == {"0-1", "2-3"}
    assert before[1].public not in owners


def test_an_existing_key_with_other_clients_is_refused(cluster: Cluster) -> None:
    cluster.make_keys("1", "2")
    with pytest.raises(AssertionError, match=r"clients-0.key is not for the clients 0-4; name another folder"):
        cluster.make_keys("1", "5")


def test_missing_arguments_are_named() -> None:
    done = subprocess.run([str(K8S / "make-keys.sh")], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("make-keys.sh: PODS and COUNT are not given")
