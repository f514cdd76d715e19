"""The project's backbone: the same arrivals give the same model, bit for bit, in simulation and through sockets.

A simulated run says in which order the updates arrive. The same order is then played against a real server over
loopback: every client has a connection and a session of its own, and sends its update when its turn comes.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

from support import apps
from unstale.client.worker import Trained, Worker
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.config.storage import RunSettings
from unstale.coordinator import actions, events
from unstale.journal.replay import RecordedRun
from unstale.metrics.progress import Outcome, Progress
from unstale.server.service import Server
from unstale.simulator.assemble import simulation
from unstale_client.actions import Send, Settle, Train
from unstale_client.jobs import Job, ReceivedModel, Settlement
from unstale_client.net import sockets
from unstale_client.session import ClientSession, State
from unstale_proto import codec, encodings
from unstale_proto.messages import Ack, Heartbeat, Message

PATIENCE_MS = 20_000  # a step that takes so long has failed; nothing is measured by it

LOOPS = {
    "sync": {"trigger": {"name": "sync"}, "policy": {"name": "fedavg"}},
    "k-async": {"trigger": {"name": "k-async", "k": 3}, "policy": {"name": "fedbuff"}},
    "async": {"trigger": {"name": "async"}, "policy": {"name": "fedasync"}},
    "buffered": {"trigger": {"name": "buffered", "k": 2}, "policy": {"name": "twafl"}},
}


def settings_of(loop: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        **LOOPS[loop],
        "clients": 6,
        "rounds": 9,
        "evaluate_every": 3,
        "seed": 3,
        "model": {"name": "logreg"},
        "server": {"address": "tcp://127.0.0.1:0", "http_address": None, "linger_s": 5.0},
        "run": {"durability": "off"},
    }
    return Settings(**{**given, **changes})


@dataclass
class Trace:
    """The events of a run. left: before its end."""

    arrivals: list[int] = field(default_factory=list)
    verdicts: list[tuple[int, str]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    is_over: bool = False

    def observe(self, event: events.Event, what_to_do: Sequence[actions.Action]) -> None:
        if isinstance(event, events.UpdateArrived):
            self.arrivals.append(event.client_id)
        elif isinstance(event, events.ClientLeft) and not self.is_over:
            self.left.append(event.client_id)
        for action in what_to_do:
            if isinstance(action, actions.Acknowledge):
                self.verdicts.append((action.task_id, action.reason or action.outcome.value))
            self.is_over = self.is_over or isinstance(action, actions.Finish)


def through_the_codec(message: Message) -> Any:
    return codec.decode(codec.encode(message))


def simulated(settings: Settings, trace: Trace | None = None) -> Outcome:
    return simulation(
        settings, on_progress=lambda _: None, observe=None if trace is None else trace.observe, relay=through_the_codec
    ).run()


class ScriptedClient:
    """A client that executes its session's actions, one step per call.

    worker: of all clients, as in a process that hosts them; not started, because its work is done when it is asked for.
    loses_acks: no ack reaches its session.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        client_id: int,
        worker: Worker,
        *,
        loses_acks: bool = False,
    ) -> None:
        self.worker = worker
        self.loses_acks, self.lost_acks = loses_acks, 0
        self.session = ClientSession(client_id, f"{client_id:032x}", offers=encodings.NAMES)
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
            elif isinstance(instruction, Settle):
                self.worker._store.settle(
                    Settlement(
                        client_id=self.session.client_id,
                        run_id=instruction.run_id,
                        number=instruction.number,
                        accepted=instruction.accepted,
                    )
                )

    def hear_until(self, done: Any) -> None:
        while not done():
            assert self.socket.poll(PATIENCE_MS), f"client {self.session.client_id} hears nothing"
            received = sockets.receive(self.socket)
            assert received is not None
            header, frames = received
            message = codec.decode(header)
            if isinstance(message, Heartbeat):
                self.answers += 1
                self.newest_version = message.version
            if self.loses_acks and isinstance(message, Ack):
                self.lost_acks += 1
                continue
            self.follow(self.session.received(message, [frame.buffer for frame in frames], 0.0))

    def wait_for_version(self, version: int) -> None:
        """Ask the server until it has made a version. Every question is answered, so nothing is measured."""
        while self.newest_version < version:
            answers = self.answers
            self.socket.send(codec.encode(Heartbeat(number=answers, version=0)))
            self.hear_until(lambda answers=answers: self.answers > answers)

    def work(self) -> None:
        """Wait for the task, do it, and stay until its update is acknowledged."""
        self.hear_until(lambda: self.task is not None)
        assert self.task is not None
        train, self.task = self.task, None
        made = self.worker._work(
            Job(
                client_id=self.session.client_id,
                welcome=train.welcome,
                task=train.task,
                model=ReceivedModel(train.parcel),
                is_wanted=lambda: True,
            )
        )
        assert isinstance(made, Trained)
        ready = self.worker._stored(made).pending
        self.follow(self.session.trained(train.welcome.run_id, ready.update, ready.parcel))
        lost = self.lost_acks
        self.hear_until(lambda: self.session.unacknowledged == 0 or self.lost_acks > lost)


def _worker(own: Settings) -> Worker:
    return Worker(lambda welcome: training_context_of(welcome, own).workload, post=lambda result: None)


def through_sockets(
    settings: Settings,
    arrivals: list[int],
    trace: Trace | None = None,
    own: Mapping[int, Settings] | None = None,
    *,
    loses_acks: bool = False,
) -> Outcome:
    """The run with these arrivals, against a real server. own: settings of each client, in a worker of its own."""
    server = Server(settings, on_progress=lambda _: None, observe=None if trace is None else trace.observe)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    shared = _worker(settings)
    workers = [shared if own is None else _worker(own[client_id]) for client_id in range(settings.clients)]
    with ThreadPoolExecutor(1) as pool, ExitStack() as on_failure:
        running = pool.submit(server.run)
        on_failure.callback(server.stop)  # else the pool would wait for ever
        clients = [
            ScriptedClient(context, server.address, client_id, worker, loses_acks=loses_acks)
            for client_id, worker in enumerate(workers)
        ]
        for count, client_id in enumerate(arrivals, start=1):
            clients[client_id].work()
            if settings.trigger.name == "buffered":
                # There a client gets its next task at once, on whichever version is current. In virtual time a round
                # takes no time, so the version that this update completes must be there before the next one is sent.
                rounds_made = count // (settings.trigger.k or 1)
                clients[client_id].wait_for_version(min(rounds_made, settings.rounds - 1))
        for client in clients:
            # A quarantined client receives nothing more: no time passes in which it would say hello.
            client.hear_until(lambda client=client: client.session.state in (State.OVER, State.GREETING))
        on_failure.pop_all()
        outcome = running.result(PATIENCE_MS / 1000)
        for client in clients:
            client.socket.close()
    context.term()
    return outcome


@pytest.mark.network
def test_sockets_and_simulation_record_the_same_numbers_of_the_policy(tmp_path: Path) -> None:
    settings = settings_of("k-async", policy={"name": "fedhist"})
    trace = Trace()
    simulation(
        settings.model_copy(update={"run": RunSettings()}),
        on_progress=lambda _: None,
        observe=trace.observe,
        record_in=tmp_path / "simulated",
    ).run()
    run = RunSettings(directory=str(tmp_path / "served"))
    through_sockets(settings.model_copy(update={"run": run}), trace.arrivals)
    in_simulation, over_sockets = (_policy_metrics(tmp_path / name) for name in ("simulated", "served"))
    assert in_simulation == over_sockets
    assert len(in_simulation) == settings.rounds
    assert in_simulation[-1]["utility_max"] > 0


def _policy_metrics(path: Path) -> list[Mapping[str, float]]:
    with RecordedRun(path) as run:
        return [row.metrics for row in run.database.rounds()]


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
    assert over_sockets.metrics["accuracy"] == in_simulation.metrics["accuracy"]
    assert over_sockets.staleness_mean == in_simulation.staleness_mean
    assert set(threading.enumerate()) <= threads  # a finished server leaves no thread behind


OTHERS: dict[str, dict[str, Any]] = {
    "a second vector": {"policy": {"name": "scaffold"}, "training": {"name": "scaffold"}},
    "what clients keep": {
        "policy": {"name": "moon"},
        "training": {"name": "moon", "mu": 5.0},
        "model": {"name": "digits_cnn", "projection_head": 8},
        "rounds": 5,
    },
    "first-order compensation": {"compensator": {"name": "first-order", "settings": {"lambda_u": 40.0}}},
    "gradient inversion": {
        "compensator": {
            "name": "gradient-inversion",
            "settings": {
                "iterations": 6,
                "images_max": 4,
                "window": 2,
                "start": "close",  # as a simulation does
            },
        }
    },
    "fedprox": {"policy": {"name": "fedprox"}, "training": {"name": "fedprox", "mu": 0.5}},
    "once a cycle": {"policy": {"name": "gsgm"}, "rounds": 12},
    "a row of memory for each client": {"policy": {"name": "mifa"}, "rounds": 12},
    "fedar": {"policy": {"name": "fedar"}, "rounds": 12},
    "wkafl": {"policy": {"name": "wkafl"}, "training": {"name": "gradient"}},
    "buffers": {"model": {"name": "support.factories:with_buffers"}},
    "dropout": {"model": {"name": "support.factories:with_dropout"}},
    "a schedule": {"training": {"learning_rate": 0.5, "schedule": {"name": "inverse", "period": 2, "warmup": 3}}},
    "a schedule that waits": {
        "policy": {"name": "mifa", "settings": {"init": "wait"}},
        "training": {"learning_rate": 0.5, "schedule": {"name": "inverse", "period": 2}},
        "rounds": 14,
    },
    "an optimiser": {"policy": {"name": "fedbuff", "optimiser": {"name": "adam"}, "clip_norm": 1.0}},
    "own evaluations": {"evaluate_clients_every": 2},
    "data that changes": {"data": {"variant": {"name": "digits", "rate": 5.0}}},
    "bfloat16": {"encoding": {"updates": "bfloat16", "models": "bfloat16"}},
    "float16": {"encoding": {"updates": "float16", "models": "float16"}},
    "int8": {"encoding": {"updates": "int8", "models": "int8", "block": 32}},
    "int8 models alone": {"encoding": {"models": "int8"}},
    "int8, and a second vector": {
        "encoding": {"updates": "int8", "models": "int8"},
        "policy": {"name": "scaffold"},
        "training": {"name": "scaffold"},
    },
    "top-k": {"encoding": {"updates": "top-k", "fraction": 0.05}},
    "top-k of gradients": {
        "encoding": {"updates": "top-k", "fraction": 0.05, "models": "bfloat16"},
        "policy": {"name": "wkafl"},
        "training": {"name": "gradient"},
    },
    "top-k, and buffers": {
        "encoding": {"updates": "top-k", "fraction": 0.05},
        "model": {"name": "support.factories:with_buffers"},
    },
}


OBJECTIVES: dict[str, dict[str, Any]] = {
    "regression": {
        "model": {"name": "support.factories:line"},
        "data": {"name": "support.factories:planes"},
        "objective": {"name": "regression"},
    },
    "a language model on data that is read when needed": {
        "model": {"name": "support.factories:bigrams"},
        "data": {"name": "support.factories:letters"},
        "objective": {"name": "language-model", "settings": {"ignore_index": -1}},
        "partition": {"name": "iid"},
        "evaluate_clients_every": 2,
    },
    "parts of a user's own": {
        "trigger": {"name": "support.plugged:pairs"},
        "selector": {"name": "support.plugged:MySelector"},
        "partition": {"name": "support.plugged:MyPartition"},
        "training": {"name": "support.plugged:MyTraining"},
        "policy": {"name": "support.plugged:MyPolicy"},
        "model": {"name": "support.plugged:linear"},
    },
    "an app": {"model": {}, "app": "support.apps:shared", "evaluate_clients_every": 2},
}


@pytest.mark.network
@pytest.mark.parametrize("loop", ["sync", "k-async"])
@pytest.mark.parametrize("name", [*OTHERS, *OBJECTIVES])
def test_both_exchange_the_same_messages(name: str, loop: str) -> None:
    settings = settings_of(loop, **(OTHERS | OBJECTIVES)[name])
    trace = Trace()
    in_simulation = simulated(settings, trace)
    over_sockets = through_sockets(settings, trace.arrivals)
    assert over_sockets.model_digest == in_simulation.model_digest
    assert over_sockets.updates == in_simulation.updates
    assert over_sockets.metrics == in_simulation.metrics
    assert repr(over_sockets.fairness) == repr(in_simulation.fairness)  # some of it is nan
    assert over_sockets.client_metrics == in_simulation.client_metrics
    is_classification = settings.objective.name == "classification" and not settings.is_app
    assert (in_simulation.fairness is not None) == (settings.evaluate_clients_every is not None and is_classification)
    assert in_simulation.updates["rejected"] == 0


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ("own evaluations", "wkafl")])
def test_none_of_it_is_without_an_effect(name: str) -> None:
    # Otherwise the equality above would say nothing.
    changes = OTHERS[name]
    alike = () if name in ("buffers", "dropout") else ("model", "rounds")
    alike = ("model", "policy", "training") if "encoding" in changes else alike
    plain = {key: changes[key] for key in alike if key in changes}
    assert (
        simulated(settings_of("k-async", **OTHERS[name])).model_digest
        != simulated(settings_of("k-async", **plain)).model_digest
    )


LONGEST = {"norm_max": 7.7, "quarantine_s": 3600.0}
"""The first updates of clients 0, 1 and 3 are longer, and other ones of theirs; after version 0 none is."""


@pytest.mark.network
@pytest.mark.parametrize(("after", "refused", "left"), [(None, 5, []), (1, 3, [0, 1, 3])])
def test_both_refuse_and_quarantine_the_same_clients(after: int | None, refused: int, left: list[int]) -> None:
    plain = settings_of("k-async")
    server = plain.server.model_copy(update={**LONGEST, "quarantine_after": after})
    settings = plain.model_copy(update={"server": server})
    in_simulation, over_sockets = Trace(), Trace()
    expected = simulated(settings, in_simulation)
    found = through_sockets(settings, in_simulation.arrivals, over_sockets)
    assert over_sockets.verdicts == in_simulation.verdicts
    assert [verdict for _, verdict in in_simulation.verdicts].count("norm-too-large") == refused
    assert over_sockets.left == in_simulation.left == left
    assert (found.model_digest, found.updates) == (expected.model_digest, expected.updates)


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
        simulated(settings_of("k-async", scenario={"name": name})).model_digest for name in ("exponential", "fixed")
    }
    assert len(digests) == 2


def test_progress_is_reported_at_every_evaluation() -> None:
    reports: list[Progress] = []
    simulation(settings_of("k-async"), on_progress=reports.append).run()
    assert [now.version for now in reports] == [0, 3, 6, 9]


def test_a_simulation_without_the_codec_makes_the_same_model() -> None:
    plain = simulation(settings_of("k-async"), on_progress=lambda _: None).run()
    assert plain.model_digest == simulated(settings_of("k-async")).model_digest


@pytest.mark.network
@pytest.mark.parametrize("loop", ["sync", "k-async"])
def test_lost_acks_change_no_bit_of_a_run_of_an_app(loop: str) -> None:
    settings = settings_of(loop, model={}, app="support.apps:counting", rounds=12)
    accepted, trace = apps.Accepted(settings.clients), Trace()

    def observe(event: events.Event, following: Sequence[actions.Action]) -> None:
        accepted(event, following)
        trace.observe(event, following)

    in_simulation = simulation(settings, on_progress=lambda _: None, observe=observe).run()
    accepted.check()
    trained = sorted(apps.COUNTED)
    apps.COUNTED.clear()
    over_sockets = through_sockets(settings, trace.arrivals, loses_acks=True)
    assert sorted(apps.COUNTED) == trained
    assert max(before for _, _, before in trained) > 2
    assert over_sockets.model_digest == in_simulation.model_digest
    assert over_sockets.updates == in_simulation.updates
