"""Faults besides the toxics, during the fault phase: of clients, connections and the server."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swarm.client import Process
from swarm.journal import PLACES, RARE_PLACES
from swarm.network import NEAR, Frames, Link
from unstale.seeds import Generator

if TYPE_CHECKING:
    from swarm.seed import Swarm

FULL_S = 2.0  # how long a disk is full, on average
AWAY_S = 3.0  # how long a client is away
PASSES = 5.0  # how often a server passes its kill place before it dies


class Chaos:
    """The faults of one seed, until `end`."""

    def __init__(self, swarm: "Swarm") -> None:
        self._swarm = swarm
        self._world = swarm.world
        self._rng = swarm.world.draws("chaos")
        self.is_active = True

    def random(self) -> float:
        """In [0, 1)."""
        return float(self._rng.random())

    def begin(self) -> None:
        chaos, keeping = self._swarm.options.chaos, self._swarm.options.keeping
        happenings: list[tuple[float, Callable[[], None]]] = [
            (chaos.crash, self._crash),
            (chaos.leave, self._leave),
            (chaos.take_over, self._take_over),
            (chaos.cut, self._cut),
            (chaos.hello, self._say_hello),
            (chaos.sleep, self._sleep),
            (chaos.stranger, self._meet_a_stranger),
            (chaos.restart, self._begin_another_run),
        ]
        if keeping is not None:
            happenings += [
                (keeping.kill, self._kill),
                (keeping.stop, self._swarm.pause_server),
                (keeping.fill, self._fill_disk),
            ]
        for rate, what in happenings:
            if rate > 0:
                _Recurring(self, rate, what, self._world.draws(what.__name__)).plan()

    def end(self) -> None:
        """End all faults."""
        self.is_active = False
        self._swarm.server.doom.spare()
        self._empty_disk()

    def after(self, wait_s: float, call: Callable[[], None]) -> None:
        self._world.after(wait_s, call)

    # --- clients ---

    def _random_client(self) -> Process | None:
        alive = [process for process in self._swarm.newest.values() if process.alive]
        return alive[int(self._rng.integers(len(alive)))] if alive else None

    def _crash(self) -> None:
        process = self._random_client()
        if process is not None:
            process.crash()
            self._world.seen["crashes"] += 1
            self._come_back(process.client_id)

    def _leave(self) -> None:
        process = self._random_client()
        if process is not None:
            process.leave()
            self._world.seen["clients left"] += 1
            self._come_back(process.client_id)

    def _come_back(self, client_id: int) -> None:
        def back() -> None:
            if self.is_active and not self._swarm.newest[client_id].alive:
                self._swarm.start(client_id)

        self._world.after(float(self._rng.exponential(AWAY_S)), back)

    def _take_over(self) -> None:
        process = self._random_client()
        if process is not None:
            self._world.seen["take-overs"] += 1
            self._swarm.start(process.client_id)

    def _say_hello(self) -> None:
        process = self._random_client()
        if process is not None and process.link is not None:
            self._world.seen["hellos for no reason"] += 1
            process.say_hello_again()

    # --- connections ---

    def _cut(self) -> None:
        links = self._swarm.links = [link for link in self._swarm.links if not link.broken]
        if links:
            link = links[int(self._rng.integers(len(links)))]
            self._world.note("network", f"cuts connection {link.number}")
            self._swarm.network.cut(link)

    def _meet_a_stranger(self) -> None:
        self._world.seen["strangers"] += 1
        link = self._swarm.server.dial(_NonsensePeer())
        if link is not None:
            self._swarm.network.send(link, NEAR, self._rng.bytes(int(self._rng.integers(40))), ())
            self._swarm.network.close(link, NEAR)

    # --- the server ---

    def _sleep(self) -> None:
        self._world.seen["server sleeps"] += 1
        self._swarm.server.sleep(float(self._rng.exponential(2.0)))

    def _begin_another_run(self) -> None:
        """The server dies, and another run starts later."""
        if self._swarm.server.is_alive:
            self._world.seen["server restarts"] += 1
            self._swarm.server.kill()

    def _kill(self) -> None:
        """Select the place where the server dies."""
        place = PLACES[int(self._rng.integers(len(PLACES)))]
        passes = 0 if place in RARE_PLACES else int(self._rng.exponential(PASSES))
        self._swarm.server.doom.strike(place, passes)

    def _fill_disk(self) -> None:
        journal = self._swarm.server.journal
        if journal is not None:
            self._world.seen["full disks"] += 1
            journal.is_full = True
            self._world.after(float(self._rng.exponential(FULL_S)), self._empty_disk)

    def _empty_disk(self) -> None:
        if self._swarm.server.journal is not None:
            self._swarm.server.journal.is_full = False


class _NonsensePeer:
    """A peer that sends nonsense and ignores all answers."""

    def receive(self, link: Link, header: bytes, frames: Frames) -> None: ...

    def lost(self, link: Link) -> None: ...


class _Recurring:
    """A recurring fault, during the fault phase."""

    def __init__(self, chaos: Chaos, rate: float, what: Callable[[], None], rng: Generator) -> None:
        self._chaos = chaos
        self._what = what
        self._mean_s = 1 / rate
        self._rng = rng

    def plan(self) -> None:
        self._chaos.after(float(self._rng.exponential(self._mean_s)), self._happen)

    def _happen(self) -> None:
        if self._chaos.is_active:
            self._what()
            self.plan()
