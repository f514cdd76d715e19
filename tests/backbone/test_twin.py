"""The project's backbone: the same arrivals give the same model, bit for bit, in simulation and through sockets.

A simulated run says in which order the updates arrive. The same order is then played against a real server over
loopback: every client has a connection and a session of its own, and sends its update when its turn comes.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq

from unstale import flat, translate
from unstale.client.prepare import workplace_of
from unstale.client.session import ClientSession, Send, State, Train
from unstale.config import Settings
from unstale.config.workplace import Workplace
from unstale.coordinator import events
from unstale.metrics.progress import Outcome, Progress
from unstale.net import sockets
from unstale.server.service import Server
from unstale.simulator.assemble import simulation
from unstale_proto import codec, payload
from unstale_proto.messages import Heartbeat, Message

PATIENCE_MS = 20_000  # a step that takes so long has failed; nothing is measured by it

LOOPS = {
    "sync": {"trigger": {"name": "sync"}, "policy": {"name": "fedavg"}},
    "k-async": {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "fedbuff"}},
    "async": {"trigger": {"name": "async"}, "policy": {"name": "fedasync"}},
    "buffered": {"trigger": {"name": "buffered", "k": 2}, "policy": {"name": "twafl"}},
}


def settings_of(loop: str, **changes: Any) -> Settings:
    return Settings(
        **LOOPS[loop],
        clients=6,
        rounds=9,
        evaluate_every=3,
        seed=3,
        model={"name": "logreg"},
        server={"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 5.0},
        **changes,
    )


@dataclass
class Trace:
    """What happened in a simulated run."""

    arrivals: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    def observe(self, event: events.Event, _: Any) -> None:
        if isinstance(event, events.UpdateArrived):
            self.arrivals.append(event.client_id)


def through_the_codec(message: Message) -> Any:
    return codec.decode(codec.encode(message))


def simulated(settings: Settings, trace: Trace | None = None) -> Outcome:
    return simulation(
        settings,
        on_progress=lambda _: None,
        observe=None if trace is None else trace.observe,
        relay=through_the_codec,
    ).run()


class ScriptedClient:
    """A client that does what its session says, one step when it is told to."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, client_id: int) -> None:
        self.session = ClientSession(client_id, f"{client_id:032x}")
        self.socket = sockets.dealer(context, heartbeat_s=60, linger_s=0)
        sockets.connect(self.socket, address)
        self.task: Train | None = None
        self.answers = 0
        self.newest_version = 0
        assert self.socket.poll(PATIENCE_MS, zmq.POLLOUT)
        self.follow(self.session.reachable(0.0))
        self.hear_until(lambda: self.session.state is State.IN)

    def follow(self, instructions: list[Any]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self.socket.send_multipart([codec.encode(instruction.message), *instruction.parcel])
            elif isinstance(instruction, Train):
                self.task = instruction

    def hear_until(self, done: Any) -> None:
        while not done():
            assert self.socket.poll(PATIENCE_MS), f"client {self.session.client_id} hears nothing"
            received = sockets.receive(self.socket, routed=False)
            assert received is not None
            _, header, frames = received
            message = codec.decode(header)
            if isinstance(message, Heartbeat):
                self.answers += 1
                self.newest_version = message.version
            self.follow(self.session.received(message, [frame.buffer for frame in frames], 0.0))

    def wait_for_version(self, version: int) -> None:
        """Ask the server until it has made a version. Every question is answered, so nothing is measured."""
        while self.newest_version < version:
            answers = self.answers
            self.socket.send(codec.encode(Heartbeat(number=answers, version=0)))
            self.hear_until(lambda answers=answers: self.answers > answers)

    def work(self, place: Workplace) -> None:
        """Wait for the task, do it, and stay until its update is acknowledged."""
        self.hear_until(lambda: self.task is not None)
        assert self.task is not None
        train, self.task = self.task, None
        base_d = flat.from_bytes(train.parcel, place.model.dimension)
        local = place.trainer.train(
            self.session.client_id, train.task.number, base_d, train.task.learning_rate
        )
        update = translate.to_update(train.task, local)
        self.follow(
            self.session.trained(train.welcome.run_id, update, payload.split(flat.to_bytes(local.vector_d)))
        )
        self.hear_until(lambda: self.session.unacknowledged == 0)


def through_sockets(settings: Settings, arrivals: list[int]) -> Outcome:
    """The run with these arrivals, against a real server."""
    server = Server(settings, on_progress=lambda _: None)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run)
        clients = [
            ScriptedClient(context, server.address, client_id) for client_id in range(settings.clients)
        ]
        first = clients[0]
        first.hear_until(lambda: first.task is not None)
        place = workplace_of(first.task.welcome, settings)  # type: ignore[union-attr]
        for count, client_id in enumerate(arrivals, start=1):
            clients[client_id].work(place)
            if settings.trigger.name == "buffered":
                # There a client gets its next task at once, on whichever version is current. In virtual time a round
                # takes no time, so the version that this update completes must be there before the next one is sent.
                rounds_made = count // (settings.trigger.k or 1)
                clients[client_id].wait_for_version(min(rounds_made, settings.rounds - 1))
        for client in clients:
            client.hear_until(lambda client=client: client.session.state is State.OVER)
        outcome = running.result(PATIENCE_MS / 1000)
        for client in clients:
            client.socket.close()
    context.term()
    return outcome


@pytest.mark.network
@pytest.mark.parametrize("loop", LOOPS)
def test_sockets_and_simulation_make_the_same_model(loop: str) -> None:
    settings = settings_of(loop)
    threads = set(threading.enumerate())
    trace = Trace()
    in_simulation = simulated(settings, trace)
    over_sockets = through_sockets(settings, trace.arrivals)
    assert over_sockets.model_digest == in_simulation.model_digest
    assert over_sockets.updates == in_simulation.updates
    assert over_sockets.test_accuracy == in_simulation.test_accuracy
    assert over_sockets.staleness_mean == in_simulation.staleness_mean
    assert set(threading.enumerate()) <= threads  # a finished server leaves no thread behind


@pytest.mark.network
def test_gradient_mode_and_several_epochs_are_twins_too() -> None:
    for training in ({"name": "gradient", "batch_size": 16}, {"name": "sgd", "epochs": 2, "momentum": 0.9}):
        settings = settings_of("k-async", training=training)
        trace = Trace()
        in_simulation = simulated(settings, trace)
        assert through_sockets(settings, trace.arrivals).model_digest == in_simulation.model_digest


def test_another_order_of_arrivals_makes_another_model() -> None:
    # Otherwise the equality above would say nothing.
    digests = {
        simulated(settings_of("k-async", simulation={"latency": {"mean_s": 1.0, "name": name}})).model_digest
        for name in ("exponential", "fixed")
    }
    assert len(digests) == 2


def test_progress_is_told_at_every_evaluation() -> None:
    told: list[Progress] = []
    simulation(settings_of("k-async"), on_progress=told.append).run()
    assert [now.version for now in told] == [0, 3, 6, 9]


def test_a_simulation_without_the_codec_makes_the_same_model() -> None:
    plain = simulation(settings_of("k-async"), on_progress=lambda _: None).run()
    assert plain.model_digest == simulated(settings_of("k-async")).model_digest
