"""Runs of a model that is too large for one message, and their clients."""

import threading
from pathlib import Path
from typing import Any, Self

from support.running import PATIENCE_S, small
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale_client.net.keys import Identity
from unstale_client.outbox import Outbox

MODEL_BYTES = 4 * (2 * 1024 * 1024 + 650)
WIDE = {"name": "support.factories:wide"}


def wide(rounds: int = 1, clients: int = 1, *, server: dict[str, Any] | None = None, **changes: Any) -> Settings:
    limits = {"heartbeat_s": 0.2, "lease_s": 5.0, "linger_s": 5.0, **(server or {})}
    return small(clients=clients, rounds=rounds, model=WIDE, server=limits, **changes)


class RunningClient:
    """The clients of a run from `first` on, in a thread of the test, which must end by themselves. folder: of their
    outbox; None for none. identity: their keys; None for plain text."""

    def __init__(
        self,
        settings: Settings,
        server: str,
        folder: Path | None = None,
        identity: Identity | None = None,
        *,
        first: int = 0,
    ) -> None:
        count = settings.clients - first
        outbox = None if folder is None else Outbox(folder, first, count, durable=False)
        self._process = ClientProcess(
            server=server,
            client_ids=range(first, first + count),
            prepare=lambda welcome: training_context_of(welcome, settings),
            heartbeat_s=0.2,
            linger_s=0.2,
            outbox=outbox,
            identity=identity,
        )
        self._thread = threading.Thread(target=self._process.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the client does not end"
