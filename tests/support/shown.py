"""A status page of a simulated run, whose content the test sets."""

from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from unstale.config.metrics import ACCURACY
from unstale.coordinator.phase import Phase
from unstale.metrics.http import HttpService
from unstale.server.pages import Pages
from unstale.server.status import Live, Status
from unstale.training.measured import MainMetric

ABOUT: dict[str, str | int] = {
    "run": "0123456789abcdef0123456789abcdef",
    "policy": "fedbuff",
    "compensator": "none",
    "trigger": "buffered",
    "selector": "all",
    "model": "logreg",
    "data": "digits",
    "training": "sgd",
    "device": "cpu",
    "rounds": 100,
    "clients": 20,
    "clients_to_start": 20,
    "evaluate_every": 1,
}
NOBODY = dict.fromkeys(("absent", "waiting", "working", "contributed", "unavailable", "lost", "left"), 0)
GATHERING = Live(
    at_s=0.0,
    phase=Phase.GATHERING,
    version=0,
    clients={**NOBODY, "absent": 20},
    updates={"accepted": 0, "duplicate": 0, "rejected": 0},
    pending=0,
)


class Site:
    """Serves the pages of a status within a context. about: facts in place of the usual ones."""

    def __init__(self, address: str = "127.0.0.1:0", *, main: MainMetric = ACCURACY, **about: str | int) -> None:
        self.live = GATHERING
        self.status = Status({**ABOUT, **about}, clock=lambda: self.live.at_s, main=main)
        self.pages = Pages(self.status, lambda: self.live)
        self._http = HttpService(
            address,
            CollectorRegistry(),
            key="server.http_address",
            healthy=lambda: True,
            ready=lambda: True,
            pages=self.pages.routes,
        )
        self.address = self._http.address
        self.url = f"http://{self.address}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.pages.close()
        self._http.close()

    def now(self, **changes: Any) -> None:
        """Set the state of the coordinator."""
        self.live = replace(self.live, **changes)

    def begin(self) -> None:
        """All clients have joined, and have tasks."""
        self.now(phase=Phase.OPEN, clients={**NOBODY, "working": 15, "waiting": 5})
        self.status.started()

    def round(self, staleness: tuple[int, ...] = (0, 3), weights: tuple[float, ...] = (0.8, 0.2)) -> None:
        """Another round, of a second, and its measurement: version v has the accuracy v / 100 and the loss 1 / v."""
        version = self.live.version + 1
        updates = {**self.live.updates, "accepted": self.live.updates["accepted"] + len(staleness)}
        self.now(at_s=self.live.at_s + 1.0, version=version, updates=updates)
        self.status.applied(
            version, staleness, weights, wait_s=0.75, compensate_s=0.0, aggregate_s=0.125, overflowed=False
        )
        self.status.evaluated(version, {"accuracy": version / 100, "loss": 1 / version}, "central", evaluate_s=0.0625)

    def finish(self) -> None:
        """The run is over."""
        self.now(phase=Phase.FINISHED, version=100, clients={**NOBODY, "left": 20})
        self.status.ended("f" * 64, self.live.at_s)
