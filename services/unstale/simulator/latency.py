"""How long a simulated task takes, from being sent to its update being there. Source: algorithms.md 4.2.

A draw belongs to a client and to the number of its task, so that it is the same whatever else happens in the run.
"""

from collections.abc import Callable

from unstale.errors import unknown_name
from unstale.seeds import Stream, stream

Latency = Callable[[int, int], float]
"""(client id, number of the client's task) -> seconds of virtual time, > 0."""


def exponential(seed: int, mean_s: float) -> Latency:
    """Independent draws from Exp(mean_s). In the K-async loop the senders of a round are then a random subset."""

    def draw(client_id: int, number: int) -> float:
        return float(stream(seed, Stream.LATENCY, client_id, number).exponential(mean_s))

    return draw


def fixed(seed: int, mean_s: float) -> Latency:
    """mean_s * (1 + U(0, 0.001)): everybody is equally fast, and no two arrive at one instant."""

    def draw(client_id: int, number: int) -> float:
        return mean_s * (1 + 1e-3 * float(stream(seed, Stream.LATENCY, client_id, number).random()))

    return draw


LATENCIES: dict[str, Callable[[int, float], Latency]] = {"exponential": exponential, "fixed": fixed}


def create(name: str, *, seed: int, mean_s: float) -> Latency:
    """A latency model by name; UserError for an unknown one."""
    if name not in LATENCIES:
        raise unknown_name("latency", name, LATENCIES)
    return LATENCIES[name](seed, mean_s)
