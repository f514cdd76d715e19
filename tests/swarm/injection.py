"""A simulated shell of the injector: the real core between connections of clients and connections to the server."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.network import FAR, NEAR, Dial, End, Frames, Link, Network
from swarm.world import World
from unstale.gateway.transport import Delivery
from unstale.injector.core import Close, Core, Cut, Forward, Output
from unstale.toxics.in_flight import Direction

RECONNECT_S = 0.2
WAITING_MAX = 16  # messages that wait for a connection to the server


@dataclass(slots=True, eq=False)
class _Pair:
    """A client's connection, and its counterpart to the server. waiting: messages until the latter exists."""

    front: Link
    back: Link | None = None
    waiting: deque[tuple[bytes, Frames]] = field(default_factory=deque)


class Injector:
    """dial: connects to the server. observe: called for each incoming and each forwarded message."""

    def __init__(
        self,
        core: Core,
        *,
        world: World,
        network: Network,
        dial: Dial,
        observe: Callable[[Link, Direction, bytes, bool], None],
    ) -> None:
        self.core = core
        self._world = world
        self._network = network
        self._dial_server = dial
        self._observe = observe
        self._by_front: dict[int, _Pair] = {}
        self._by_back: dict[int, _Pair] = {}
        self._unread: deque[tuple[Link, bytes, Frames]] = deque()
        self._refused_until_s: dict[int, float] = {}
        self._releasing_s: float | None = None

    def dial(self, client_id: int, end: End) -> Link | None:
        """Connect a client, which is refused for a while after a cut."""
        if self._world.now_s < self._refused_until_s.get(client_id, 0.0):
            return None
        front = self._network.connect(end, self)
        passed = self._by_front[front.number] = _Pair(front)
        self._connect_back(passed)
        return front

    @property
    def fronts(self) -> list[Link]:
        return [passed.front for passed in self._by_front.values()]

    @property
    def backs(self) -> list[Link]:
        return [passed.back for passed in self._by_front.values() if passed.back is not None]

    # --- connections, on both sides ---

    def receive(self, link: Link, header: bytes, frames: Frames) -> None:
        self._unread.append((link, header, frames))
        self._read()

    def lost(self, link: Link) -> None:
        passed = self._by_back.pop(link.number, None)
        if passed is not None:  # ZeroMQ reconnects by itself, without an event
            passed.back = None
            self._world.after(RECONNECT_S, lambda: self._connect_back(passed))
            return
        self._close(link.number)

    def _connect_back(self, passed: _Pair) -> None:
        if passed.front.number not in self._by_front or passed.back is not None:
            return
        passed.back = self._dial_server(self)
        if passed.back is None:
            self._world.after(RECONNECT_S, lambda: self._connect_back(passed))
            return
        self._by_back[passed.back.number] = passed
        while passed.waiting:
            self._network.send(passed.back, NEAR, *passed.waiting.popleft())

    def _close(self, number: int) -> None:
        """Close both connections, and drop their messages."""
        passed = self._by_front.pop(number, None)
        if passed is None:
            return
        self.core.closed(number)
        if passed.front.open[FAR]:
            self._network.close(passed.front, FAR)
        if passed.back is not None:
            del self._by_back[passed.back.number]
            self._network.close(passed.back, NEAR)

    # --- messages ---

    def _read(self) -> None:
        """Read up to the bound; unread messages wait."""
        while self._unread and not self.core.is_full:
            link, header, frames = self._unread.popleft()
            passed = self._by_back.get(link.number)
            direction = Direction.UP if passed is None else Direction.DOWN
            front = link if passed is None else passed.front
            if front.number in self._by_front:
                self._observe(front, direction, header, False)
                self.core.on_message(front.number, direction, header, frames, self._world.now_s)
        for output in self.core.release(self._world.now_s):
            self._perform(output)
        self._plan_release()

    def _plan_release(self) -> None:
        due_s = self.core.due_s
        if due_s is None or (self._releasing_s is not None and self._releasing_s <= due_s):
            return
        self._releasing_s = due_s

        def release() -> None:
            if self._releasing_s == due_s:
                self._releasing_s = None
                self._read()

        self._world.at(due_s, release)

    def _perform(self, output: Output) -> None:
        match output:
            case Forward():
                self._forward(output)
            case Cut(connection=int(number), client_id=client_id, down_s=down_s):
                self._world.note("injector", f"cuts client {client_id} for {down_s:.3f} s")
                self._refused_until_s[client_id] = self._world.now_s + down_s
                passed = self._by_front.get(number)
                if passed is not None:
                    self._network.cut(passed.front)
                    self._close(number)
            case Close(connection=int(number)):
                self._close(number)

    def _forward(self, forward: Forward) -> None:
        number = forward.connection
        assert isinstance(number, int)
        passed = self._by_front.get(number)
        if passed is None:
            return
        header, frames = forward.header, [memoryview(frame) for frame in forward.cargo]
        self._observe(passed.front, forward.direction, header, True)
        if forward.direction is Direction.DOWN:
            if self._network.send(passed.front, FAR, header, frames) is not Delivery.SENT:
                self._close(number)  # it is closed, or does not read: the server must see that, too
        elif passed.back is not None:
            if self._network.send(passed.back, NEAR, header, frames) is Delivery.GONE:
                passed.waiting.append((header, frames))
        else:
            passed.waiting.append((header, frames))
        while len(passed.waiting) > WAITING_MAX:
            passed.waiting.popleft()
