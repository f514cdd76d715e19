"""The commands, variables and probes of the manifests as local processes, with deletion of a server's pod.

`kubernetes.kubelet` and `kubernetes.networks` describe the replaced addresses and paths.
"""

import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kubernetes.kubelet import Cluster, Pod
from kubernetes.manifests import Object, Workload, composed, overlay, workloads
from kubernetes.networks import Loopback, Namespaces, Network, best, need_namespaces
from support.scrape import sample
from unstale.config import Settings
from unstale.errors import UserError
from unstale.simulator.assemble import simulation
from unstale_client.net import keys

pytestmark = [pytest.mark.network, pytest.mark.slow]

RUN: dict[str, Any] = {
    "clients": 4,
    "evaluate_every": 1000,
    "device": "cpu",
    "model": {"name": "logreg"},
    "partition": {"name": "iid", "min_examples": 1},
    "training": {"name": "sgd", "learning_rate": 0.5, "steps": 1, "batch_size": 1},
    "policy": {"name": "fedbuff"},
    "trigger": {"name": "sync"},
    "selector": {"name": "round-robin", "size": 2},
}
"""A run whose model does not depend on losses or speed. Each of two clients per round has half of the weight, so that
the sum does not depend on their order. With one example each, a lost task that is assigned again has the same result,
though its draws differ."""
SERVER: dict[str, Any] = {
    "server": {"heartbeat_s": 0.1, "lease_s": 600.0, "linger_s": 1.0},  # no lease expires while a pod restarts
    "run": {"checkpoint_every": 10**6},  # so that only servers that are terminated write checkpoints
}


def by_component(objects: Sequence[Object]) -> dict[str, Workload]:
    return {one.component: one for one in workloads(objects)}


def version(server: Pod) -> float:
    with server.http() as url:
        return sample(url, "unstale_model_version")


def has_made(server: Pod, versions: float) -> None:
    """Wait until the server has made so many versions."""
    server.wait(lambda: version(server) >= versions, f"until it has made version {versions:g}")


def test_deleting_and_killing_the_server_pod_does_not_change_the_model(tmp_path: Path) -> None:
    play(tmp_path, Loopback, rounds=1000, killed_too=True)


def test_deleting_the_server_pod_behind_the_injector_does_not_change_the_model(tmp_path: Path) -> None:
    play(tmp_path, best(), "lossy", rounds=60)


def data_of_one_example_a_client(folder: Path) -> dict[str, Any]:
    examples = np.eye(RUN["clients"], 8, dtype=np.float32) + 0.5
    labels = np.arange(RUN["clients"])
    np.savez(folder / "data.npz", x_train=examples, y_train=labels, x_test=examples, y_test=labels)
    return {"name": "npz", "path": str(folder / "data.npz")}


def play(folder: Path, network: type[Network], *components: str, rounds: int, killed_too: bool = False) -> None:
    everywhere = {"data": data_of_one_example_a_client(folder), "scenario": {"time_scale": 0.01}}
    config = {"unstale-run": {**RUN, **SERVER, **everywhere, "rounds": rounds}, "unstale-clients": everywhere}
    objects = composed(folder / "overlay", *components, base="overlays/local", config=config)
    made_of = by_component(objects)
    with Cluster(objects, folder / "cluster", network) as cluster:
        cluster.make_keys(*(["--injector"] if components else []), "2", "2")
        server = cluster.start(made_of["server"])
        others = [cluster.start(made_of[name]) for name in components and ["injector"]]
        clients = [cluster.start(made_of["client"], index) for index in range(2)]
        for pod in (server, *others, *clients):
            pod.is_started()
            pod.is_ready()
            assert pod.probe("livenessProbe")
        has_made(server, 5)
        assert server.delete() == 0
        line = finished(server)
        assert line["reason"] == "shutdown"
        assert newest_checkpoint(server) == line["versions"]
        server = cluster.start(made_of["server"])
        if killed_too:
            server.is_started()
            has_made(server, line["versions"] + 5)
            server.kill()
            server = cluster.start(made_of["server"])
        assert [pod.end() for pod in clients] == [0, 0]
        server.wait(lambda: bool(finished(server)), "until the run has ended")
        assert cluster.start(made_of["client"]).end() == 0  # arrives late, and receives the end
        assert server.probe("readinessProbe")
        assert server.probe("livenessProbe")
        assert version(server) == rounds
        for pod in (*others, server):
            assert pod.delete() == 0
        line = finished(server)
        assert (line["reason"], line["versions"]) == ("finished", rounds)
    undisturbed = Settings(**RUN, data=everywhere["data"], rounds=rounds, run={"durability": "off"})
    assert line["model_digest"] == simulation(undisturbed, on_progress=lambda _: None).run().model_digest
    assert line["updates"]["accepted"] == 2 * rounds


def finished(server: Pod) -> dict[str, Any]:
    """The server's line at the end of the run; empty without one."""
    found = [fact for fact in server.facts() if fact["event"] == "finished"]
    assert len(found) <= 1
    return found[0] if found else {}


def newest_checkpoint(server: Pod) -> int:
    with closing(sqlite3.connect(f"file:{server.claim / 'run' / 'run.db'}?mode=ro", uri=True)) as opened:
        (found,) = opened.execute("SELECT max(version) FROM checkpoints").fetchone()
    return int(found)


@pytest.mark.parametrize("network", [Loopback, Namespaces])
def test_terminated_clients_do_not_complete_their_job(tmp_path: Path, network: type[Network]) -> None:
    if network is Namespaces:
        need_namespaces()
    with Cluster(overlay("local"), tmp_path / "cluster", network) as cluster:
        cluster.make_keys("2", "2")
        pod = cluster.start(by_component(cluster.objects)["client"], 1)
        pod.is_started()  # it waits for a server
        assert not pod.probe("readinessProbe")
        assert pod.delete() == 128 + signal.SIGTERM


def test_a_mounted_secret_is_refused_and_the_init_containers_copy_is_accepted(tmp_path: Path) -> None:
    with Cluster(overlay("local"), tmp_path / "cluster") as cluster:
        cluster.make_keys("2", "2")
        pod = cluster.start(by_component(cluster.objects)["client"])
        with pytest.raises(UserError, match="has mode 440, so that others can use it"):
            keys.identity(pod.path("/secret/client.key_secret", "init"), "client.key")
        own = keys.identity(pod.path("/keys/client.key_secret"), "client.key")
        assert own.public == keys.public_key(tmp_path / "cluster/keys/admitted/clients-0.key", "a key")
