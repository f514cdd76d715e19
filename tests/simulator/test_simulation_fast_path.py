"""Clients without toxics give the same run with and without simulated messages.

In the slow run a toxic that never acts puts every client on the network, where each message passes the codec.
"""

import hashlib
from collections.abc import Sequence
from math import nan
from typing import Any

import pytest
from torch import Tensor

from support.virtual import OneNumber, Trace, drawn, one_number, update_of
from unstale.coordinator import events
from unstale.coordinator.settings import SelectorSettings, TriggerSettings
from unstale.seeds import Stream, stream
from unstale.server.client_limits import ClientLimits
from unstale.toxics.link import Applied
from unstale.toxics.registry import create
from unstale.training.local import LocalUpdate
from unstale_proto import codec
from unstale_proto.messages import EncodingPlan, Message

ALL = None


def toxic(clients: frozenset[int] | None, **settings: Any) -> Applied:
    return Applied(create({"name": settings["type"], **settings}, "test"), clients)


HEARTBEATS = toxic(ALL, type="drop", messages=["bye"])  # acts on no message; the clients send heartbeats
NO_HEARTBEATS = toxic(ALL, type="reorder", messages=["bye"], delay=1.0)


def relay(message: Message) -> Any:
    return codec.decode(codec.encode(message))


def scenario(seed: int) -> dict[str, Any]:
    """A random run: trigger, selector, devices, limits, and faults of a part of the clients."""
    rng = stream(seed, Stream.TOXICS)

    def pick(options: Sequence[Any]) -> Any:
        return options[rng.integers(len(options))]

    clients = int(rng.integers(2, 10))
    k = int(rng.integers(1, clients + 1))
    trigger = pick(
        [
            TriggerSettings(name="async"),
            TriggerSettings(name="sync"),
            TriggerSettings(name="k-async", k=k),
            TriggerSettings(name="k-sync", k=k),
            TriggerSettings(name="buffered", k=k),
            TriggerSettings(name="deadline", wait_s=pick([0.5, 1.0, 2.0])),
        ]
    )
    size = int(rng.integers(k, clients + 1))
    disturbed = frozenset(rng.permutation(clients)[: rng.integers(clients)].tolist())
    faults = [
        toxic(disturbed, type="latency", delay=0.3),
        toxic(disturbed, type="duplicate", toxicity=0.3, messages=["update"]),
        toxic(disturbed, type="drop", toxicity=0.2),
        toxic(disturbed, type="disconnect", toxicity=0.05),
        toxic(disturbed, type="corrupt", toxicity=0.2, where="payload", bits=3),
    ]
    return {
        "clients": clients,
        "rounds": int(rng.integers(3, 26)),
        "trigger": trigger,
        "selector": pick([None, SelectorSettings(name="random", size=size)]),
        "tasks_take": drawn(clients, seed=seed),
        "toxics": [faults[index] for index in rng.permutation(len(faults))[:2]] if disturbed else [],
        "evaluate_clients_every": pick([None, 2]),
        "task_timeout_s": pick([None, 2.0]),
        "encoding": pick([None, EncodingPlan(updates="bfloat16", models="bfloat16")]),
        "client_limits": ClientLimits(quarantine_after=pick([None, 2]), quarantine_s=4.0),
        "seed": seed,
    }


def digest_of(seed: int, *harmless: Applied, **changes: Any) -> str:
    """Digest of all events except heartbeats, all actions, the tasks whose state clients store, and the model."""
    settings = scenario(seed)
    rng = stream(seed, Stream.INVERSION)
    failing = {(rng.integers(9), rng.integers(5)): value for value in (nan, nan, 0.0, 0.0)}

    def train(client_id: int, number: int, base_d: Tensor, rate: float) -> LocalUpdate:
        value = failing.get((client_id, number), -1.0 - 0.1 * float(base_d[0]))
        return update_of(value, kind="delta")

    trace, backend = Trace(), OneNumber(train)
    toxics = [*settings.pop("toxics"), *harmless]
    run = one_number(backend, settings.pop("tasks_take"), toxics=toxics, observe=trace, **settings, **changes)
    outcome = run.run()
    followed = [entry for entry in trace.told if not isinstance(entry[0], events.HeartbeatReceived)]
    # Verdicts of the last instant may be in flight.
    ended_s = trace.arrivals[-1][0]
    last = {client_id for at_s, client_id in trace.arrivals if at_s == ended_s}
    settled = sorted(one for one in backend.settled if one[0] not in last)
    return hashlib.sha256(repr((followed, settled, outcome, run.sent.digest)).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_the_fast_path_and_the_slow_path_give_the_same_run(seed: int) -> None:
    fast = digest_of(seed)
    assert digest_of(seed, NO_HEARTBEATS, relay=relay) == fast
    assert digest_of(seed, HEARTBEATS, relay=relay) == fast
