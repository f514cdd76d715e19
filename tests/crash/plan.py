"""The plan that a seed draws: training, durability, and deaths of the processes."""

from dataclasses import dataclass
from typing import Any, TypeVar
from zlib import crc32

from crash.places import AGAIN, ASKED, DURING, FIRST, LAST, Place
from unstale.seeds import Generator, Stream, stream

T = TypeVar("T")

ROUNDS = 60
CLIENTS = 4

SCENARIO: dict[str, Any] = {
    "groups": [
        {
            "name": "everyone",
            "toxics": [
                {"type": "drop", "toxicity": 0.1},
                {"type": "duplicate", "toxicity": 0.1},
                {"type": "reorder", "toxicity": 0.05, "delay": {"distribution": "exponential", "mean_s": 0.01}},
            ],
        }
    ]
}

LOOPS: list[dict[str, Any]] = [
    {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "fedbuff"}},
    {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "fedhist"}},
    {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "wkafl"}},
    {"trigger": {"name": "buffered", "k": 2}, "policy": {"name": "fedbuff", "optimiser": {"name": "adam"}}},
    {"trigger": {"name": "async"}, "policy": {"name": "fedasync"}},
    {"trigger": {"name": "sync"}, "policy": {"name": "fedavg", "optimiser": {"name": "momentum"}}},
    {"trigger": {"name": "sync"}, "policy": {"name": "scaffold"}, "training": {"name": "scaffold"}},
    {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "moon"}, "training": {"name": "moon"}},
    {"trigger": {"name": "deadline", "wait_s": 0.05}, "policy": {"name": "mifa"}},
    {"trigger": {"name": "k-sync", "k": 2}, "policy": {"name": "fedvarp"}},
    {"trigger": {"name": "k-sync", "k": 2}, "policy": {"name": "fedar"}, "selector": {"name": "random", "size": 3}},
    {"trigger": {"name": "k-async", "k": 2}, "policy": {"name": "gsgm"}},
]
"""Methods with state in the server, in the clients, in both or in neither."""

GATEWAY_DEATHS = 5  # in a run
_AIMED = 0.6  # share of deaths at a place
_RARE = 0.4  # share of those at a place of a start or resumption, if any
_LAST = 0.1  # share of those at the end of the run
_POLITE = 0.25  # of the other deaths: SIGTERM, which does not count as a kill
_AT_START = 0.2  # of the same: soon after the start, which others rarely hit
_START_S = 0.5  # upper limit after the start
_ROUNDS_MEAN = 16.0  # mean life of a process
_PATIENCE_ROUNDS = 20  # additional life to reach a place
_BETWEEN_S = 0.1  # upper limit after a version, about the duration of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How one process dies: `wait_s` after its start or, with `rounds`, after so many further rounds; or before, at a
    call of a place. polite: by SIGTERM."""

    wait_s: float
    rounds: int | None = None
    place: Place | None = None
    call: int = 0
    polite: bool = False

    def __str__(self) -> str:
        asked = "asked to end " if self.polite else ""
        since = "its start" if self.rounds is None else f"{self.rounds} more rounds"
        return f"{asked}{self.wait_s:.2f} s after {since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. settings: without addresses and folders. client_processes: which divide the clients. kills: in total."""

    seed: int
    number: int
    settings: dict[str, Any]
    client_processes: int
    kills: int
    gateway_deaths: tuple[int, ...] = ()  # versions after which a gateway is aborted

    @property
    def name(self) -> str:
        chosen = self.settings
        kept = "all kept" if chosen["run"]["keep_updates"] else "little kept"
        return (
            f"run {self.number}: {chosen['trigger']['name']}, {chosen['policy']['name']}, durability "
            f"{chosen['run']['durability']}, checkpoint every {chosen['run']['checkpoint_every']}, {kept}, "
            f"{self.client_processes} client processes, {chosen['server']['gateways']} gateways"
        )

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"make crash SEED={self.seed} RUN={self.number}"


def drawn(seed: int, number: int, kills: int) -> Plan:
    """The plan of a run."""
    rng = _draws(seed, f"run {number}")
    durability = _one_of(rng, ["normal", "normal", "full"])
    loop = LOOPS[(number + seed) % len(LOOPS)]
    settings = {
        "seed": int(rng.integers(1000)),
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "evaluate_every": 10,
        "device": "cpu",
        "model": {"name": "logreg"},
        "partition": {"name": "iid"},
        **loop,
        "training": {**loop.get("training", {}), "learning_rate": 0.1, "steps": 2, "batch_size": 8},
        "run": {
            "durability": durability,
            "checkpoint_every": _one_of(rng, [3, 7, 15, 25]),
            "keep_updates": bool(rng.random() < 0.5),
        },
        "client": {"durability": durability},
    }
    own = _draws(seed, f"gateways of run {number}")
    settings["server"] = {"gateways": int(own.integers(0, 3))}
    if _draws(seed, f"rows of run {number}").random() < 0.5:
        settings["run"]["rows_memory_bytes_max"] = 0  # rows wait on disk, where the policy allows it
    deaths = sorted({int(version) for version in own.integers(1, ROUNDS, size=GATEWAY_DEATHS)})
    return Plan(
        seed=seed,
        number=number,
        settings=settings,
        client_processes=int(rng.integers(1, 3)),
        kills=kills,
        gateway_deaths=tuple(deaths) if kills and settings["server"]["gateways"] else (),
    )


def fate(plan: Plan, kind: str, name: str, life: int) -> Fate:
    """How a process dies. kind: `server`, `inject` or `client`. life: number of its previous starts."""
    rng = _draws(plan.seed, f"run {plan.number} {name} {life}")
    if rng.random() < _AIMED:
        kind_of = float(rng.random())
        begins = (AGAIN if life else FIRST)[kind]
        if kind_of < _LAST and LAST[kind]:
            return _at(rng, LAST[kind], ROUNDS)
        rare = begins and kind_of < _LAST + _RARE
        return _at(rng, begins if rare else DURING[kind], _PATIENCE_ROUNDS + _rounds(rng))
    polite = bool(rng.random() < _POLITE)
    if rng.random() < _AT_START:
        return Fate(wait_s=_between(rng, _START_S), polite=polite)
    return Fate(rounds=_rounds(rng), wait_s=_between(rng, _BETWEEN_S), polite=polite)


def _at(rng: Generator, places: list[Place], rounds: int) -> Fate:
    place = _one_of(rng, places)
    call = int(rng.integers(1, place.calls_max + 1))
    polite = place.when == ASKED
    return Fate(rounds=rounds, wait_s=_between(rng, _BETWEEN_S), place=place, call=call, polite=polite)


def _rounds(rng: Generator) -> int:
    return int(rng.geometric(1 / _ROUNDS_MEAN))


def _between(rng: Generator, most: float) -> float:
    return float(rng.uniform(0.0, most))


def _one_of(rng: Generator, choices: list[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _draws(seed: int, purpose: str) -> Generator:
    # The draws of a toxic have 0 or 1 in the second place.
    return stream(seed, Stream.TOXICS, crc32(purpose.encode()), 3)
