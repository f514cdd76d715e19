"""The server's shell, played: the real exchange, coordinator and staging; sockets, clock and computation are played."""

from collections import deque
from collections.abc import Callable, Sequence

import torch

from swarm.client import NUMBERS, model
from swarm.network import FAR, End, Frames, Link, Network
from swarm.world import World
from unstale.config import parts
from unstale.coordinator.machine import Coordinator
from unstale.coordinator.settings import CoordinatorSettings
from unstale.learner.learner import RoundResult
from unstale.learner.versions import Version
from unstale.server.account import Account
from unstale.server.commands import Applied, ApplyCommand, Command, EvaluateCommand, Evaluated
from unstale.server.exchange import Exchange, Letter, StopNow
from unstale.server.transfers import EVERY_DAY, TransferBounds
from unstale.server.wire import Delivery
from unstale.training.evaluate import Evaluation
from unstale_proto import signature
from unstale_proto.messages import PartitionPlan, TensorSpec, TrainingPlan, Welcome

TURN_MESSAGES = 64  # taken in before timers and results get their turn


class PlayedCompute:
    """Applies rounds and evaluates by letting time pass.

    apply_s: the most that a round takes; an evaluation takes as long. check: given the rows of each round. post: takes
    the results.
    """

    def __init__(
        self,
        world: World,
        *,
        apply_s: float,
        check: Callable[[ApplyCommand], None],
        post: Callable[[Letter], None],
    ) -> None:
        self._world = world
        self._rng = world.draws("compute")
        self._apply_s = apply_s
        self._check = check
        self._post = post
        self._free_s = 0.0
        self.version = 0

    def submit(self, command: Command) -> None:
        if not isinstance(command, ApplyCommand | EvaluateCommand):
            return
        self._free_s = max(self._free_s, self._world.now_s) + self._apply_s * float(self._rng.random())
        if isinstance(command, ApplyCommand):
            self._check(command)
        self._world.at(self._free_s, lambda: self._post(self._result(command)))

    def _result(self, command: ApplyCommand | EvaluateCommand) -> Applied | Evaluated:
        if isinstance(command, EvaluateCommand):
            assert command.version == self.version, "an older version than the newest is measured"
            evaluation = Evaluation(accuracy=0.5, loss=1.0, class_accuracy=(0.5,), examples=2)
            return Evaluated(version=command.version, evaluation=evaluation, evaluate_s=0.0)
        self.version += 1
        command.round.release()
        staleness = tuple(update.staleness for update in command.updates)
        result = RoundResult(
            version=self.version,
            sent=version_of(self.version),
            learning_rate=0.1,
            weights_K=tuple(1 / len(staleness) for _ in staleness),
            staleness=staleness,
            rate_factor=1.0,
            overflowed=False,
        )
        return Applied(result=result, frames=model(self.version), aggregate_s=0.0, device_memory_bytes=0)


def version_of(number: int) -> Version:
    """A version whose parameters are its number."""
    return Version(model_d=torch.full((NUMBERS,), float(number)), buffers_b=torch.empty(0))


class Wire:
    """The exchange's way out, to the connections that the server listens on. observe: told of all that it sends."""

    def __init__(self, network: Network, observe: Callable[[Link, bytes, Frames], None]) -> None:
        self._network = network
        self._observe = observe
        self.links: dict[bytes, Link] = {}

    def wrap(self, frames: Sequence[memoryview]) -> Sequence[memoryview]:
        return frames

    def send(self, route: bytes, header: bytes, frames: Sequence[object] = ()) -> Delivery:
        link = self.links.get(route)
        if link is None:
            return Delivery.GONE
        payload = [frame for frame in frames if isinstance(frame, memoryview)]
        delivery = self._network.send(link, FAR, header, payload)
        if delivery is Delivery.SENT:
            self._observe(link, header, payload)
        return delivery


class Server:
    """One run's server: turns as the exchange thread does.

    run_id: of the run. coordinator: the real one, watched perhaps. check: given the rows of each round.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        run_id: str,
        heartbeat_s: float,
        apply_s: float,
        linger_s: float,
        transfers: TransferBounds | None,
        world: World,
        network: Network,
        heard: Callable[[Link, bytes], None],
        said: Callable[[Link, bytes, Frames], None],
        check: Callable[[ApplyCommand], None],
    ) -> None:
        self._world = world
        self._heard = heard
        self._inbox: deque[tuple[Link, bytes, Frames]] = deque()
        self._letters: deque[Letter] = deque()
        self._turning_s: float | None = None
        self._asleep_until_s = 0.0
        self.is_alive = True
        self._network = network
        self.wire = Wire(network, said)
        self.coordinator = coordinator
        settings = coordinator.settings
        compute = PlayedCompute(world, apply_s=apply_s, check=check, post=self._post)
        self.exchange = Exchange(
            self.wire,
            world.clock,
            coordinator=coordinator,
            staging=parts.staging(settings, NUMBERS, torch.device("cpu")),
            compute=compute.submit,
            account=Account(
                rounds=settings.rounds,
                record=lambda _: None,
                on_progress=lambda _: None,
                evaluate_clients_every=None,
            ),
            welcome=welcome(settings, run_id=run_id, heartbeat_s=heartbeat_s),
            learning_rate=0.1,
            frames={0: model(0)},
            sent=version_of(0),
            dimension=NUMBERS,
            linger_s=linger_s,
            transfers=transfers or EVERY_DAY,
        )

    def dial(self, end: End) -> Link | None:
        """Somebody connects."""
        if not self.is_alive:
            return None
        link = self._network.connect(end, self)
        self.wire.links[link.route] = link
        return link

    def took(self, link: Link, header: bytes, frames: Frames) -> None:
        self._inbox.append((link, header, frames))
        self._plan_turn(self._world.now_s)

    def lost(self, link: Link) -> None:
        del self.wire.links[link.route]

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while: the process was stopped, or the machine was."""
        self._asleep_until_s = self._world.now_s + seconds
        self._world.note("server", f"sleeps for {seconds:.3f} s")

    def stop(self) -> None:
        """The operator ends the run."""
        self._post(StopNow())

    def crash(self) -> None:
        """End without a word."""
        self._world.note("server", "crashes")
        self._close()

    @property
    def is_over(self) -> bool:
        """Whether it has ended by itself."""
        return self.exchange.over

    def _close(self) -> None:
        self.is_alive = False
        for link in list(self.wire.links.values()):
            self._network.close(link, FAR)
        self.wire.links.clear()

    def _post(self, letter: Letter) -> None:
        self._letters.append(letter)
        self._plan_turn(self._world.now_s)

    def _plan_turn(self, due_s: float) -> None:
        due_s = max(due_s, self._asleep_until_s)
        if self._turning_s is not None and self._turning_s <= due_s:
            return
        self._turning_s = due_s

        def turn() -> None:
            if self._turning_s == due_s:
                self._turning_s = None
                self._turn()

        self._world.at(due_s, turn)

    def _turn(self) -> None:
        if not self.is_alive:
            return
        if self._world.now_s < self._asleep_until_s:
            self._plan_turn(self._asleep_until_s)
            return
        while self._letters:
            self.exchange.open(self._letters.popleft())
        for _ in range(min(TURN_MESSAGES, len(self._inbox))):
            link, header, frames = self._inbox.popleft()
            self._heard(link, header)
            self.exchange.take_in(link.route, header, frames)
        self.exchange.settle(more_waits=bool(self._inbox))
        if self.exchange.over:
            self._close()
        elif self._inbox or self._letters:
            self._plan_turn(self._world.now_s)
        elif self.exchange.due_s is not None:
            assert self.exchange.due_s > self._world.now_s, "a turn that did nothing is followed by another"
            self._plan_turn(self.exchange.due_s)


def welcome(settings: CoordinatorSettings, *, run_id: str, heartbeat_s: float) -> Welcome:
    """What every client is told of the run."""
    tensors = (TensorSpec(name="weights", shape=(NUMBERS,), dtype="float32"),)
    return Welcome(
        client_id=0,
        run_id=run_id,
        clients=settings.clients,
        seed=settings.seed,
        version=0,
        model="played",
        data="played",
        partition=PartitionPlan(name="iid"),
        training=TrainingPlan(name="gradient", batch_size=1, steps=1),
        tensors=tensors,
        signature=signature.digest(tensors),
        heartbeat_s=heartbeat_s,
        lease_s=settings.lease_s,
    )
