"""Over sockets, a model with a frozen backbone takes the bytes of its adapter."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from backbone.test_apps import app_run
from support import apps
from support.large import RunningClient
from support.proxy import Proxy
from support.running import RunningServer

pytestmark = pytest.mark.network

CLIENTS, ROUNDS = 2, 3
ADAPTER_BYTES, BACKBONE_BYTES = 4 * (2 * 256 + 2 + 1), 4 * (2 * 256 + 256 + 256 * 256 + 256)
HEADER_BYTES_MAX = 1500  # the largest one, a welcome, names data, training and tensors

LEVELS: dict[str, dict[str, Any]] = {
    "app": {"app": "support.apps:adapted"},
    "objective": {
        "app": None,
        "model": {"name": "support.apps:adapted_factory"},
        "objective": {"name": "regression"},
        "data": {"name": "support.factories:plane_rows"},
        "partition": {"name": "iid"},
        "training": {"steps": 2, "batch_size": 8, "learning_rate": 0.125},
    },
}


@pytest.mark.parametrize("level", LEVELS)
def test_only_the_adapter_travels_in_both_directions(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps.write_tables(tmp_path, CLIENTS)
    monkeypatch.setenv(apps.FOLDER, str(tmp_path))
    file = tmp_path / "model.safetensors"
    settings = app_run(None, clients=CLIENTS, rounds=ROUNDS, save_model=str(file), **LEVELS[level])
    with RunningServer(settings) as server, Proxy(server.address, lambda message, up: False) as proxy:
        with RunningClient(settings, proxy.address):
            outcome = server.end()
        server.server.save()
        sizes = list(proxy.sizes)
    assert outcome.updates == {"accepted": CLIENTS * ROUNDS, "duplicate": 0, "rejected": 0}
    for up in (True, False):
        payloads = [payload for is_up, _, payload in sizes if is_up == up and payload]
        assert payloads == [ADAPTER_BYTES] * (CLIENTS * ROUNDS)
    assert max(header for _, header, _ in sizes) < HEADER_BYTES_MAX
    assert sum(header + payload for _, header, payload in sizes) < BACKBONE_BYTES / 4  # once it would be more
    assert sorted(load_file(file)) == ["down.weight", "up.bias", "up.weight"]
