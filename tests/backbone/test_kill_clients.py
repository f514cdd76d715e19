"""A client process that is killed in the middle of its work stops no round."""

from contextlib import ExitStack
from typing import Any

import pytest

from support.processes import Process
from support.running import RunningServer, small
from support.scrape import sample
from unstale.metrics.progress import Progress

pytestmark = [pytest.mark.network, pytest.mark.slow]

TRIGGERS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "k-async": {"name": "k-async", "k": 5},  # more than will be left alive
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_killing_a_client_process_stops_no_round_and_its_clients_are_counted_as_lost(trigger: str) -> None:
    lost: dict[int, float] = {}  # by version

    def watch(now: Progress) -> None:
        lost[now.version] = sample(server.http, "unstale_clients", state="lost")
        if now.version == 5:
            processes[1].process.kill()  # at once: only messages in flight can still arrive

    settings = small(
        clients=6,
        rounds=20,
        evaluate_every=5,
        trigger=TRIGGERS[trigger],
        server={"heartbeat_s": 0.25, "lease_s": 1.5, "linger_s": 5.0},
    )
    with RunningServer(settings, watch) as server, ExitStack() as stack:
        processes = [
            stack.enter_context(Process("client", "--server", server.address, "--first", first, "--count", "3"))
            for first in ("0", "3")
        ]
        assert processes[1].end() == -9
        outcome = server.end()
        assert (outcome.reason, outcome.versions) == ("finished", 20)
        assert processes[0].end() == 0
    assert lost[5] == 0
    # A round that waits for all six, or for more than are left, can close only when the server has noticed.
    assert [lost[version] for version in (10, 15, 20)] == [3, 3, 3]
    assert server.state()["clients"] == {
        "absent": 0, "waiting": 0, "working": 0, "contributed": 0, "unavailable": 0, "lost": 3, "left": 3,
    }  # fmt: skip
