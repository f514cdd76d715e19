"""Random rounds for an oracle: K-async with real staleness, availability, and senders that do not wait.

    k-async       at most `round_size` distinct senders a round, each from the version after its last update
    availability  any subset of the clients, often none; all from the current model
    repeated      as many arrivals, in which a client may occur twice, each from a version of its own

Vectors are drawn anew where the oracle was within `MARGIN` of the other side of a threshold: float32 may then rightly
decide differently, and the two would diverge.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from oracles.oracle import Oracle, Update, Vector
from unstale.seeds import Generator, Stream, stream

MARGIN = 1e-4

Arrival = tuple[int, int]
"""A client and its staleness."""
Grid = Callable[[Vector], Vector]
"""The grid of numbers that a client can send."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The input of a policy in one round, and the result of the oracle. w_next is before any rounding."""

    version: int
    w: Vector
    eta: float
    updates: tuple[Update, ...]
    w_next: Vector
    counts: bool
    sent: Vector | None
    """The values sent to clients besides the model after the round."""
    weights: tuple[float, ...]


def float32(values: Vector) -> Vector:
    """The nearest float32 values."""
    return values.astype(np.float32).astype(np.float64)


def sixty_fourths(values: Vector) -> Vector:
    """The nearest multiples of 1/64: exact in float32, and short to write."""
    return np.round(values * 64) / 64


def play(
    oracle: Oracle, loop: str, *, seed: int, rounds: int, grid: Grid = float32, model_grid: Grid | None = float32
) -> list[Round]:
    """Run a new oracle. model_grid: rounding of the model after each round; None for no rounding."""
    rng = stream(seed, Stream.BATCHES, sorted(_LOOPS).index(loop))
    clients = _Clients(rng, oracle.N, oracle.d, grid)
    models = [grid(rng.standard_normal(oracle.d))]
    played = []
    for version, arrivals in enumerate(islice(_LOOPS[loop](rng, oracle.N, oracle.round_size), rounds)):
        eta = (0.5, 0.5, 0.25)[version % 3]
        before = copy.deepcopy(oracle)
        for _ in range(200):
            updates = tuple(clients.update(client, s, version, models) for client, s in arrivals)
            w_next = oracle.step(models[version], updates, eta)
            if oracle.margin > MARGIN:
                break
            vars(oracle).update(vars(copy.deepcopy(before)))
        else:
            raise AssertionError(f"round {version} stays at a threshold, however its vectors are drawn")
        played.append(
            Round(
                version=version,
                w=models[version],
                eta=eta,
                updates=updates,
                w_next=w_next,
                counts=oracle.counts,
                sent=oracle.sent(),
                weights=tuple(oracle.weights),
            )
        )
        models.append(w_next if model_grid is None else model_grid(w_next))
    return played


class _Clients:
    """The updates of clients: the gradient of (w - target)^2 / 4 and noise, of varying length; and decreasing losses.

    Half of the clients share a target, so the model reaches points where clients disagree at all angles.
    """

    def __init__(self, rng: Generator, N: int, d: int, grid: Grid) -> None:
        self.rng, self.d, self.grid = rng, d, grid
        self.shared = rng.standard_normal(d)
        self.own = rng.standard_normal((N, d))
        self.n = rng.integers(1, 300, N)

    def update(self, client: int, s: int, version: int, models: list[Vector]) -> Update:
        rng = self.rng
        length = math.exp(0.5 * rng.standard_normal()) / 2
        pull = 0.5 * models[version - s] - self.shared - 0.75 * self.own[client]
        g = length * (pull + rng.standard_normal(self.d))
        loss = np.array([2 / (1 + version / 25) + 0.1 * rng.standard_normal()])
        return Update(
            client=client,
            s=s,
            g=self.grid(g),
            n=int(self.n[client]),
            m=int(rng.integers(1, self.n[client] + 1)),
            loss=float(self.grid(loss)[0]),
            eta_l=float(rng.choice([0.25, 0.375, 0.5])),
            w_b=models[version - s],
            extra=self.grid(rng.standard_normal(self.d) / 2),
        )


def _k_async(rng: Generator, N: int, round_size: int) -> Iterator[list[Arrival]]:
    """1.3. Some clients rarely send, so that staleness has a tail."""
    speed = 1 / np.arange(1, N + 1)
    base = [0] * N
    version = 0
    while True:
        K = int(rng.integers(1, round_size + 1))
        senders = rng.choice(N, size=K, replace=False, p=speed / speed.sum()).tolist()
        yield [(client, version - base[client]) for client in senders]
        version += 1
        for client in senders:
            base[client] = version


def _availability(rng: Generator, N: int, round_size: int) -> Iterator[list[Arrival]]:
    """1.3. A share of rounds without clients, a share with all clients; round_size has no effect here."""
    while True:
        p = float(rng.choice([0.0, 0.1, 0.3, 0.6, 1.0], p=[0.1, 0.3, 0.3, 0.2, 0.1]))
        yield [(int(client), 0) for client in rng.permutation(N) if rng.random() < p]


def _repeated(rng: Generator, N: int, round_size: int) -> Iterator[list[Arrival]]:
    """Senders that do not wait for their round."""
    version = 0
    while True:
        K = int(rng.integers(1, round_size + 1))
        clients = rng.integers(0, N, K).tolist()
        yield [(client, int(rng.integers(0, min(version, 5) + 1))) for client in clients]
        version += 1


_LOOPS = {"availability": _availability, "k-async": _k_async, "repeated": _repeated}
