"""The attacked servers and their configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unstale.config.keys import KEYS

HONEST, HOSTILE = 4, 2
TASK_S = 0.04
"""How long a task takes on an honest client's device."""

DESCRIPTORS = 1024
"""Bound on the descriptors of a server, as on most systems."""


MEMORY_BYTES_MAX = 900 * 10**6
"""Bound on the memory of every server. One with a model of 8 MiB uses 730 MB without an attack."""

LARGE: Mapping[str, Mapping[str, Any]] = {"model": {"name": "support.factories:wide"}, "run": {"keep_updates": False}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One configuration of a server and its honest clients.

    Attributes:
        name: referenced by attacks.
        keys: the server admits only clients with keys.
        settings: by group, besides those of every scene.
        task_s: how long a task takes on an honest client's device.
        calm_s: minimum time without an attack.
        attack_s: minimum time of an attack.
        settle_s: time after an attack until the run has its usual rate.
        warm: honest updates are accepted before the first attack. Where False, the scene refuses them all, and the
            first round waits for a hostile client.
    """

    name: str
    keys: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task_s: float = TASK_S
    calm_s: float = 1.0
    attack_s: float = 3.5
    settle_s: float = 0.0
    warm: bool = True


SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (
        Scene(name="plain"),
        Scene(name="keyed", keys=True),
        Scene(name="saturated", task_s=0.0),
        Scene(name="saturated-keyed", keys=True, task_s=0.0),
        Scene(
            name="synchronous",
            settings={"trigger": {"name": "sync", "k": None}, "server": {"task_timeout_s": 0.5}},
            attack_s=12.0,
            settle_s=3.0,
        ),
        Scene(name="fedasync", settings={"policy": {"name": "fedasync"}, "server": {"norm_max": 100.0}}),
        Scene(name="samples", settings={"policy": {"settings": {"weighting": "samples"}}}),
        Scene(
            name="scaffold",
            settings={"policy": {"name": "scaffold"}, "training": {"name": "scaffold"}, "server": {"norm_max": 1000.0}},
        ),
        Scene(name="low-bound", settings={"server": {"norm_max": 1e-3}}, calm_s=0.0, attack_s=8.0, warm=False),
        Scene(name="large", settings=LARGE, task_s=0.3, calm_s=4.0, attack_s=10.0),
        Scene(name="large-keyed", keys=True, settings=LARGE, task_s=0.3, calm_s=4.0, attack_s=10.0),
    )
}


def configuration(scene: Scene, seed: int) -> dict[str, Any]:
    """The settings of the server and its honest clients, besides addresses and folders. A key that this version of the
    project does not support is left out."""
    common: dict[str, Any] = {
        "model": {"name": "logreg"},
        "partition": {"name": "iid"},
        "training": {"learning_rate": 0.05, "steps": 1, "batch_size": 16},
        "policy": {"name": "fedavg"},
        "trigger": {"name": "k-async", "k": HONEST // 2},
        "run": {"keep_updates": True},
        "server": {
            "heartbeat_s": 0.5,
            "lease_s": 2.0,
            "retry_s": 0.1,
            "linger_s": 1.0,
            "quarantine_s": 1.0,
            "memory_bytes_max": MEMORY_BYTES_MAX,
        },
        "client": {},
    }
    for group, given in scene.settings.items():
        known = {key: value for key, value in given.items() if f"{group}.{key}" in KEYS}
        common[group] = {**common.get(group, {}), **known}
    return {
        "seed": seed,
        "clients": HONEST + HOSTILE,
        "min_clients": HONEST if scene.warm else HONEST + 1,
        "rounds": 10**9,
        "evaluate_every": 50,
        "device": "cpu",
        **common,
    }
