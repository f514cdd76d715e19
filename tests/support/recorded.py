"""Recorded runs with their directories."""

import threading
from pathlib import Path
from typing import Any

from support.running import PATIENCE_S, RunningServer, small
from unstale.client.service import ClientProcess
from unstale.client.workspace import training_context_of
from unstale.coordinator.actions import Observer
from unstale.metrics.progress import Outcome
from unstale.simulator.assemble import simulation


def simulated(path: Path, observe: Observer | None = None, **changes: Any) -> Outcome:
    """A run in virtual time, of six clients. changes: keys at the top."""
    settings = small(**{"clients": 6, "rounds": 12, "evaluate_every": 4, "run": {}, **changes})
    return simulation(settings, on_progress=lambda _: None, observe=observe, record_in=path).run()


def over_sockets(path: Path, *, run: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    """A run over loopback, of six clients. run: keys of that group. changes: keys at the top."""
    settings = small(
        **{
            "clients": 6,
            "rounds": 60,
            "evaluate_every": 20,
            "run": {"directory": str(path), "keep_updates": True, **(run or {})},
            **changes,
        }
    )
    with RunningServer(settings) as server:
        clients = ClientProcess(
            server=server.address,
            client_ids=range(settings.clients),
            prepare=lambda welcome: training_context_of(welcome, settings),
            heartbeat_s=settings.server.heartbeat_s,
            linger_s=settings.server.linger_s,
        )
        overdue = threading.Timer(PATIENCE_S, clients.stop)
        overdue.start()
        clients.run()
        overdue.cancel()
        overdue.join()
        return server.end()
