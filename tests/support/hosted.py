"""A process's worth of clients, in a thread of the test."""

import threading
from pathlib import Path
from typing import Self

from support.running import PATIENCE_S
from unstale.client.outbox import Outbox
from unstale.client.prepare import workplace_of
from unstale.client.service import ClientProcess
from unstale.config import Settings


class RunningClient:
    """All clients of a run, which must end by themselves. folder: of their outbox; None for none."""

    def __init__(self, settings: Settings, server: str, folder: Path | None = None, first: int = 0) -> None:
        count = settings.clients - first
        outbox = None if folder is None else Outbox(folder, first, count, durable=False)
        self._process = ClientProcess(
            server=server,
            first=first,
            count=count,
            prepare=lambda welcome: workplace_of(welcome, settings),
            heartbeat_s=0.2,
            linger_s=0.2,
            outbox=outbox,
        )
        self._thread = threading.Thread(target=self._process.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the client does not end"
