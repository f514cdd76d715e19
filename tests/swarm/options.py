"""The draws of a seed: the run, its clients, its network, and its faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from swarm.client import Behaviour
from swarm.journal import Keeping
from swarm.world import World
from unstale.coordinator.settings import CoordinatorSettings
from unstale.errors import UserError
from unstale.seeds import Generator
from unstale.server.state import TransferBounds
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale.toxics.in_flight import MESSAGE_TYPES
from unstale.toxics.scenario import Conditions, Scenario

ENDLESS = 10**6  # rounds of a run that is stopped once all clients were served
OUT_OF_ORDER = frozenset({"reorder", "duplicate", "corrupt"})  # messages may overtake or be damaged
UNTIL_STOPPED = 0.7  # share of such runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Rates of faults, per second, of some client or connection, or of the server."""

    crash: float
    leave: float
    take_over: float
    cut: float
    hello: float
    sleep: float
    stranger: float
    restart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the server on clients, as in its settings of the same names."""

    messages_per_s_max: float | None
    quarantine_after: int
    quarantine_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of a seed. Seconds: upper bounds, unless documented otherwise.

    fault_s: duration of the fault phase. first_s: within it the clients start. injector: whether it exists, with these
    conditions. bytes_max: its bound. queue_max: messages that a connection queues. transfers: limits of payloads in
    chunks, if used. keeping: how the run is stored, if it is. outbox: updates of clients survive their processes.
    hostile: hostile clients.
    """

    coordinator: CoordinatorSettings
    heartbeat_s: float
    linger_s: float
    apply_s: float
    delay_s: float
    notice_s: float
    queue_max: int
    fault_s: float
    first_s: float
    behaviour: Behaviour
    chaos: Chaos
    injector: bool
    bytes_max: int
    scenario: Mapping[str, Any]
    conditions: Conditions
    transfers: TransferBounds | None
    keeping: Keeping | None
    outbox: bool
    hostile: frozenset[int]
    bounds: Bounds

    @property
    def return_s(self) -> float:
        """Upper bound on the return of clients after an absence of the server."""
        return 2 * self.behaviour.reconnect_s + 2 * self.heartbeat_s + 20 * self.delay_s

    @property
    def words(self) -> str:
        """A text for the transcript; the conditions are those of the resolved scenario."""
        return ", ".join(
            f"{each.name}={getattr(self, each.name)}" for each in fields(self) if each.name != "conditions"
        )

    @property
    def toxic_types(self) -> frozenset[str]:
        """The types of all applied toxics."""
        return frozenset(applied.toxic.type for applied in self.conditions.toxics)

    @property
    def keeps_order_down(self) -> bool:
        """Whether no toxic reorders or duplicates messages to clients."""
        return not any(
            applied.toxic.type in OUT_OF_ORDER and applied.toxic.direction != "up" for applied in self.conditions.toxics
        )


class _Population:
    """Ten classes; a client has that of its id and the next."""

    classes = 10

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def holders(self, label: int) -> Sequence[int]:
        return [client for client in range(self.clients) if label in (client % 10, (client + 1) % 10)]

    def smallest_class(self, client_id: int) -> int:
        return 0 if client_id % 10 == 9 else client_id % 10


def draw(world: World) -> Options:
    """The options of a seed."""
    rng = world.draws("options")
    clients = int(rng.integers(1, 13))
    fault_s = _between(rng, 5, 30)
    injector = rng.random() < 0.85
    scenario = _scenario(rng, clients, fault_s) if injector else _NOTHING
    conditions = Scenario.parsed(scenario, "swarm").settled(_Population(clients), world.seed)
    heartbeat_s = _between(rng, 0.3, 2)
    restarts = rng.random() < 0.1
    keeping = _keeping(world.draws("keeping"))
    coordinator = _coordinator(rng, world.seed, clients, heartbeat_s * _between(rng, 2, 6), conditions)
    return Options(
        coordinator=coordinator,
        heartbeat_s=heartbeat_s,
        linger_s=_between(rng, 0.5, 5),
        apply_s=_one_of(rng, [0.0, 0.01, 0.1, 1.0]),
        delay_s=_one_of(rng, [0.0, 0.001, 0.02, 0.2]),
        notice_s=_one_of(rng, [0.0, 0.5, 5.0]),
        queue_max=_one_of(rng, [2, 8, 64, 64]),
        fault_s=fault_s,
        first_s=_one_of(rng, [0.0, 1.0, fault_s]),
        behaviour=Behaviour(
            training_s=_one_of(rng, [0.05, 0.2, 1.0, 4.0]),
            reconnect_s=_one_of(rng, [0.1, 0.5, 2.0]),
            failing=_one_of(rng, [0.0, 0.0, 0.1]),
            non_finite=_one_of(rng, [0.0, 0.0, 0.1]),
        ),
        chaos=Chaos(
            crash=_rate(rng, 0.2),
            leave=_rate(rng, 0.1),
            take_over=_rate(rng, 0.1),
            cut=_rate(rng, 0.5),
            hello=_rate(rng, 0.5),
            sleep=_rate(rng, 0.1),
            stranger=_rate(rng, 0.5),
            restart=0.05 if restarts and keeping is None else 0.0,
        ),
        injector=injector,
        bytes_max=_one_of(rng, [2_000, 20_000, 10**9]),
        scenario=scenario,
        conditions=conditions,
        transfers=_transfers(world.draws("transfers")),
        keeping=keeping,
        outbox=bool(world.draws("outbox").random() < 0.5),
        hostile=_hostile(world.draws("hostile"), clients),
        bounds=_bounds(world.draws("bounds")),
    )


def _keeping(rng: Generator) -> Keeping | None:
    """For 40 % of the seeds, with so small files that all of them fill up."""
    if rng.random() < 0.6:
        return None
    return Keeping(
        durability=_one_of(rng, ["full", "normal"]),
        checkpoint_every=_one_of(rng, [1, 3, 10, 10**6]),
        payload_bytes_max=_one_of(rng, [1024, 2**30]),
        keep_updates=bool(rng.random() < 0.3),
        segment_bytes=_one_of(rng, [32, 128, 1024, 2**20]),
        spills=bool(rng.random() < 0.3),
        kill=_between(rng, 0.1, 1.0),
        stop=_rate(rng, 0.1),
        fill=_rate(rng, 0.3),
    )


def _hostile(rng: Generator, clients: int) -> frozenset[int]:
    """In 15 % of the seeds some of the clients, never all of them."""
    if clients == 1 or rng.random() < 0.85:
        return frozenset()
    count = int(rng.integers(1, max(2, clients // 2)))
    return frozenset(int(client) for client in rng.permutation(clients)[:count])


def _bounds(rng: Generator) -> Bounds:
    return Bounds(
        messages_per_s_max=_one_of(rng, [1000, 1000, 1000, 50, None]),
        quarantine_after=_one_of(rng, [10, 10, 5, 3]),
        quarantine_s=_between(rng, 0.5, 10),
    )


def _transfers(rng: Generator) -> TransferBounds | None:
    """Payloads of 12 bytes in chunks of 4, for half of the seeds; few chunks, so that no queue is full of them."""
    if rng.random() < 0.5:
        return None
    return TransferBounds(
        chunk_bytes=4,
        window_bytes=_one_of(rng, [4, 4, 8]),
        places=int(rng.integers(1, 3)),
        parts_max=int(rng.integers(1, 4)),
        versions=int(rng.integers(1, 3)),
    )


_NOTHING: Mapping[str, Any] = {"groups": [{"name": "everyone"}]}


def _coordinator(
    rng: Generator, seed: int, clients: int, lease_s: float, conditions: Conditions
) -> CoordinatorSettings:
    """Draw until the settings are compatible."""
    while True:
        name = _one_of(rng, ["sync", "k-sync", "k-async", "k-async", "async", "buffered", "deadline"])
        selector = _one_of(rng, ["all", "all", "random", "round-robin", "availability"])
        k = int(rng.integers(1, clients + 1)) if name.startswith("k-") or name == "buffered" else None
        size = None if selector == "all" else int(rng.integers(1, clients + 1))
        stale = {
            client: int(rng.integers(1, 5))
            for client in range(clients)
            if name == "sync" and selector != "availability" and rng.random() < 0.2
        }
        try:
            return CoordinatorSettings(
                clients=clients,
                rounds=ENDLESS if rng.random() < UNTIL_STOPPED else int(rng.integers(1, 41)),
                trigger=TriggerSettings(name=name, k=k, wait_s=_between(rng, 0.1, 5) if name == "deadline" else None),
                selector=SelectorSettings(name=selector, size=size),
                availability=conditions.availability,
                seed=seed,
                lease_s=lease_s,
                evaluate_every=int(rng.integers(1, 6)),
                retry_s=_between(rng, 0.1, 2),
                min_clients=_one_of(rng, [None, 1, int(rng.integers(1, clients + 1))]),
                once_a_cycle=bool(rng.random() < 0.2),
                stale_rounds=stale,
            )
        except UserError:
            continue


# --- faults in transit ---


def _scenario(rng: Generator, clients: int, fault_s: float) -> Mapping[str, Any]:
    """One or two groups with up to four toxics each; in half of the seeds none that breaks the order of messages."""
    kinds = [kind for kind in _SETTINGS if kind not in OUT_OF_ORDER] if rng.random() < 0.5 else list(_SETTINGS)
    groups = []
    for place in range(int(rng.integers(1, 3))):
        toxics = [_toxic(rng, kinds, fault_s) for _ in range(int(rng.integers(0, 5)))]
        groups.append({"name": f"group {place}", "clients": _audience(rng, clients), "toxics": toxics})
    return {"groups": groups}


def _toxic(rng: Generator, kinds: Sequence[str], fault_s: float) -> Mapping[str, Any]:
    kind = _one_of(rng, kinds)
    window = _window(rng, fault_s)
    common: dict[str, Any] = {"type": kind, "toxicity": _one_of(rng, [0.02, 0.1, 0.3, 1.0]), **window}
    if rng.random() < 0.5:
        common["direction"] = _one_of(rng, ["up", "down"])
    if rng.random() < 0.4:
        count = int(rng.integers(1, 4))
        common["messages"] = [MESSAGE_TYPES[index] for index in rng.permutation(len(MESSAGE_TYPES))[:count]]
    return {**common, **_SETTINGS[kind](rng, fault_s)}


def _window(rng: Generator, fault_s: float) -> Mapping[str, float]:
    if rng.random() < 0.6:
        return {}
    start_s = _between(rng, 0, fault_s)
    return {"start_s": start_s, "end_s": _between(rng, start_s + 0.1, start_s + fault_s)}


def _audience(rng: Generator, clients: int) -> Any:
    kind = _one_of(rng, ["all", "all", "share", "list", "holding"])
    if kind == "share":
        return {"share": _between(rng, 0.1, 1)}
    if kind == "list":
        first = int(rng.integers(clients))
        return [f"{first}-{int(rng.integers(first, clients))}"]
    return {"holding": 0, "top": int(rng.integers(1, 4))} if kind == "holding" else "all"


def _delay(rng: Generator) -> Any:
    kind = _one_of(rng, ["constant", "uniform", "normal", "lognormal", "exponential", "pareto", "trace"])
    mean_s = _one_of(rng, [0.01, 0.1, 1.0])
    settings: Mapping[str, Mapping[str, Any]] = {
        "constant": {"value_s": mean_s},
        "uniform": {"low_s": 0.0, "high_s": 2 * mean_s},
        "normal": {"mean_s": mean_s, "deviation_s": mean_s},
        "lognormal": {"median_s": mean_s, "sigma": 0.5},
        "exponential": {"mean_s": mean_s},
        "pareto": {"least_s": mean_s / 2, "shape": 2.0},
        "trace": {"values_s": [0.0, mean_s, 2 * mean_s]},
    }
    return {"distribution": kind, **settings[kind]}


def _dropout(rng: Generator, _: float) -> Mapping[str, Any]:
    share = _one_of(rng, [0.1, 0.5, 0.9])
    always = {"direction": "both", "messages": None, "toxicity": 1.0, "start_s": 0.0, "end_s": None}
    return _one_of(
        rng,
        [
            {"p": share, **always},
            {"p_min": share, **always},
            {"on_s": _between(rng, 0.5, 10), "off_s": _between(rng, 0.1, 5), "toxicity": 1.0},
        ],
    )


def _blackout(rng: Generator, fault_s: float) -> Mapping[str, Any]:
    start_s = _between(rng, 0, fault_s)
    length_s = _between(rng, 0.1, 5)
    again = {"every_s": length_s + _between(rng, 1, 10)} if rng.random() < 0.3 else {}
    layer = _one_of(rng, ["message", "tcp"])
    return {"start_s": start_s, "end_s": start_s + length_s, "layer": layer, "toxicity": 1.0, **again}


_SETTINGS = {
    "latency": lambda rng, _: {"delay": _delay(rng)},
    "bandwidth": lambda rng, _: {
        "bytes_per_s": _one_of(rng, [2e3, 1e4, 1e5]),
        "layer": _one_of(rng, ["message", "tcp"]),
    },
    "drop": lambda rng, _: {"toxicity": _one_of(rng, [0.05, 0.2, 0.5])},
    "dropout": _dropout,
    "slow": lambda rng, _: {"factor": _between(rng, 1.1, 2.5)},
    "duplicate": lambda rng, _: {"copies": int(rng.integers(1, 3)), "after": _delay(rng)},
    "reorder": lambda rng, _: {"delay": _delay(rng)},
    "corrupt": lambda rng, _: {
        "bits": int(rng.integers(1, 4)),
        "where": _one_of(rng, ["payload", "payload", "header", "anywhere"]),
        "toxicity": _one_of(rng, [0.02, 0.2]),
    },
    "blackout": _blackout,
    "disconnect": lambda rng, _: {"toxicity": _one_of(rng, [0.01, 0.05]), "down_s": _between(rng, 0, 3)},
}


# --- draws ---


def _between(rng: Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def _one_of(rng: Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _rate(rng: Generator, most: float) -> float:
    """A rate for half of the seeds."""
    return most * float(rng.random()) if rng.random() < 0.5 else 0.0
