"""The parts of a run that compute on its device, by name: everything that is registered, and the server around it."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

import unstale
from device.counts import Part, Step
from device.inversions import iterations, on_another_machine
from support.compensation import numbers
from support.running import small
from support.wire import welcome
from unstale.client.worker import Trained, Worker
from unstale.compensators import registry as compensators
from unstale.compensators.compensator import UNCHANGED
from unstale.compensators.inversion.settings import PRESETS, InversionSettings
from unstale.config import build
from unstale.config.compensation import compensator
from unstale.config.memory import allocator
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.flat import FlatModel
from unstale.journal import checkpoints
from unstale.learner.updates import RoundUpdate, Rows
from unstale.learner.versions import Version
from unstale.policies import UpdateBatch, create, names
from unstale.policies.registry import find
from unstale.policies.stages import wrapped
from unstale.server import commands
from unstale.server.compute import Compute
from unstale.settings.learning import ObjectiveSettings, OptimiserSettings
from unstale.simulator.backends.backend import Backend, Computed, Job, Loop
from unstale.simulator.backends.vmap import Vmap
from unstale.simulator.oracle_updates import OracleUpdates
from unstale.training.evaluate import evaluate
from unstale.training.examples import TensorExamples
from unstale.training.objectives import OBJECTIVES
from unstale.training.objectives import create as create_objective
from unstale.training.registry import TRAININGS
from unstale.training.trainings import StepTraining
from unstale_client import jobs
from unstale_proto.messages import Task, TensorSpec

CLIENTS, D = 12, 37
ROUNDS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [0, 4, 0, 8], [], [1, 2, 5], [3, 6, 7, 9]]
"""Clients of the updates of each round: also one twice, and a round without updates."""
STEPS = 3  # of a local training
FEW_ITERATIONS: dict[str, Any] = {"iterations": 4, "iterations_min": 1, "images_max": 3}


def normalised() -> nn.Module:
    """A model with buffers, of digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))


def policy(name: str, where: torch.device, step: Step, **stages: Any) -> Iterator[Tensor]:
    """Two cycles of rounds. stages: of `wrapped`."""
    subject = wrapped(
        create(
            name,
            dimension=D,
            clients=CLIENTS,
            device=where,
            round_size=4,
            rounds=2 * len(ROUNDS),
            allocate=allocator("auto", None, where),
            **find(name).example_settings,
        ),
        **stages,
    )
    for version in range(2 * len(ROUNDS)):
        ids = ROUNDS[version % len(ROUNDS)]
        batch = _batch(version, ids, where, extra=subject.sends_extra, bases=subject.needs_base_models)
        with step():
            made = subject.step(batch)
        yield made.direction_d
        subject.load_state_dict(subject.state_dict())


def _batch(version: int, ids: list[int], where: torch.device, *, extra: bool, bases: bool) -> UpdateBatch:
    rows = len(ids)
    integers = partial(torch.tensor, dtype=torch.int64)
    return UpdateBatch(
        version=version,
        matrix_Kd=numbers(rows, D, seed=version).to(where),
        extra_Kd=numbers(rows, D, seed=version + 100).to(where) if extra else None,
        staleness_K=integers([min(row, version) for row in range(rows)]),
        num_examples_K=integers([10 + row for row in range(rows)]),
        loss_K=torch.ones(rows),
        client_ids_K=integers(ids),
        model_d=torch.ones(D).to(where) if bases else None,
        base_models=tuple(numbers(D, seed=200 + row).to(where) for row in range(rows)) if bases else None,
        rate=0.1,
        local_rates_K=torch.full((rows,), 0.1),
    )


def settings_of(where: torch.device, training: str = "sgd", **changes: Any) -> Settings:
    """Settings of a run of four clients with a small convolutional network on digits."""
    taken = TRAININGS[training].model_fields
    given: dict[str, Any] = {
        "clients": 4,
        "device": where.type,
        "model": {"name": "digits_cnn"},
        "training": {
            "name": training,
            "learning_rate": 0.1,
            "batch_size": 8,
            **({"steps": STEPS} if issubclass(TRAININGS[training], StepTraining) else {}),
            **({"momentum": 0.5} if "momentum" in taken else {}),
        },
        "policy": {"name": "scaffold" if TRAININGS[training].needs_extra else "fedavg"},
        "trigger": {"name": "k-async", "k": 3},
        **changes,
    }
    return small(**given)


class ServedRun:
    """The compute thread's work on a server, without the thread."""

    def __init__(self, where: torch.device, **changes: Any) -> None:
        settings = settings_of(where, **changes)
        context = training_context(settings)
        made = build.run_components(
            settings,
            compensator,
            workspace=context,
            fresh_update=OracleUpdates(Loop(context.workload), settings.clients, settings.client_settings).of,
            keep_versions=True,
        )
        self.learner = made.learner
        self._staging = build.staging(made.coordinator, self.learner.row_numbers, where)
        self._compute = Compute(
            learner=self.learner, evaluate=build.evaluation(context), post=self._take, save=self._save
        )

    def round(self) -> commands.ApplyCommand:
        """A round of three updates, of staleness 0 to 2."""
        version, updates, handles = self.learner.version, [], []
        for client_id in range(3):
            staleness = min(client_id, version)
            handle, row = self._staging.row()
            row.vector_D.copy_(numbers(len(row.vector_D), seed=10 * version + client_id, scale=0.01))
            update = RoundUpdate(
                client_id=client_id,
                task_id=4 * version + client_id + 1,
                base_version=version - staleness,
                staleness=staleness,
                num_examples=8,
                batch_examples=8,
                loss=1.0,
                local_rate=0.1,
            )
            self._staging.keep(handle, update)
            handles.append(handle)
            updates.append(update)
        return commands.ApplyCommand(round=self._staging.take(handles), updates=tuple(updates))

    def perform(self, command: commands.Command) -> Any:
        """Execute a command, and return its result."""
        self._compute._perform(command)
        return self._result

    def evaluate(self) -> Any:
        return self.perform(commands.EvaluateCommand(version=self.learner.version))

    def checkpoint(self) -> Any:
        return self.perform(
            commands.CheckpointCommand(version=self.learner.version, seq=1, coordinator={}, admission={})
        )

    def _take(self, result: commands.ComputeResult) -> None:
        self._result = result

    def _save(self, command: commands.CheckpointCommand, state: Mapping[str, Any]) -> tuple[str, int]:
        with tempfile.TemporaryDirectory() as folder:
            file = checkpoints.write(Path(folder), command.version, state, {"seq": command.seq})
        return file.path.name, file.size_bytes


class RowsOnDisk:
    """Rows that are read by columns."""

    def __init__(self, rows: Tensor | Rows) -> None:
        assert isinstance(rows, Tensor)
        self._rows = rows
        self.shape = (rows.shape[0], rows.shape[1])

    def columns(self, start: int, end: int) -> Tensor:
        return self._rows[:, start:end].clone()


def rounds(where: torch.device, step: Step, *, on_disk: bool = False, **changes: Any) -> Iterator[Tensor]:
    """Rows in host memory go up, are aggregated, and the new model comes back."""
    served = ServedRun(where, **changes)
    for _ in range(4):
        command = served.round()
        if on_disk:
            command.round.rows = RowsOnDisk(command.round.rows)
        with step():
            applied = served.perform(command)
        yield _joined(applied.frames)


def evaluation(where: torch.device, step: Step, **changes: Any) -> Iterator[Tensor]:
    served = ServedRun(where, **changes)
    for _ in range(2):
        with step():
            evaluated = served.evaluate()
        yield torch.tensor([evaluated.evaluation.metrics[name] for name in ("accuracy", "loss")])
        served.perform(served.round())


def checkpoint(where: torch.device, step: Step) -> Iterator[Tensor]:
    served = ServedRun(where, policy={"name": "wkafl"})
    for _ in range(2):
        served.perform(served.round())
        with step():
            saved = served.checkpoint()
        yield torch.tensor(saved.size_bytes)


def compensated(name: str, where: torch.device, step: Step, **settings: Any) -> Iterator[Tensor]:
    few = FEW_ITERATIONS if compensators.find(name).inverts else {}
    return rounds(where, step, compensator={"name": name, "settings": {**few, **settings}})


def begun_early(name: str, where: torch.device, step: Step) -> Iterator[Tensor]:
    """A stale update arrives while its round is open, and the compute thread works on it."""
    served = ServedRun(where, compensator={"name": name, "settings": FEW_ITERATIONS})
    for _ in range(3):
        command = served.round()
        row_D, update = command.round.rows[2], command.updates[2]
        if update.staleness:
            with step():
                served.learner.precompute(row_D, update)
                served.learner.work()
        served.perform(command)
        yield served.learner.model_d


def tasks(training: str, make: Any, where: torch.device, step: Step) -> Iterator[Tensor]:
    """Two tasks of each of three clients; the second ones have the state that the first ones left."""
    context = training_context(settings_of(where, training))
    model, backend = context.model, make(context.workload)
    for number in range(2):
        base = Version(
            model_d=model.parameters_d.clone(),
            buffers_b=model.buffers_b.clone(),
            extra_d=torch.full_like(model.parameters_d, 1e-3) if context.workload.needs_extra else None,
        )
        given = [
            Job(client_id=client_id, number=number, base=base, learning_rate=0.1, evaluate=False)
            for client_id in range(3)
        ]
        yield from _computed(backend, given, step, at_once=make is Vmap)


def _computed(backend: Backend, given: list[Job], step: Step, *, at_once: bool) -> Iterator[Tensor]:
    for group in [given] if at_once else [[job] for job in given]:
        with step():
            results = backend.compute(group)
        for job, result in zip(group, results, strict=True):
            assert isinstance(result, Computed)
            yield result.local.vector_d
            backend.keep(job.client_id, job.number)


def trained_by_user(module: nn.Module, _data: Any, task: unstale.Task) -> unstale.Trained:
    """Code of a user, which puts its data on the device of the module."""
    weight = next(module.parameters())
    inputs = numbers(6, 64, seed=task.number).to(weight.device, weight.dtype)
    optimiser = torch.optim.SGD(module.parameters(), lr=task.learning_rate, momentum=0.5)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = module(inputs).float().square().mean()
        loss.backward()
        optimiser.step()
    task.state["tasks"] = task.number
    return unstale.Trained(num_examples=6, loss=loss.item())


app = unstale.App(model=normalised, train=trained_by_user)
half_app = unstale.App(model=lambda: normalised().bfloat16(), train=trained_by_user)


def app_tasks(name: str, where: torch.device, step: Step) -> Iterator[Tensor]:
    settings = small(
        clients=3,
        app=f"device.parts:{name}",
        device=where.type,
        model={},
        partition={},
        training={"learning_rate": 0.1},
    )
    context = training_context(settings)
    for number in range(2):
        base = Version(model_d=context.model.parameters_d.clone(), buffers_b=context.model.buffers_b.clone())
        given = [Job(client_id=0, number=number, base=base, learning_rate=0.1, evaluate=False)]
        yield from _computed(Loop(context.workload), given, step, at_once=True)


OUTPUTS: Mapping[str, tuple[tuple[int, ...], Tensor]] = {
    "binary": ((1,), torch.arange(7) % 2),
    "classification": ((3,), torch.arange(7) % 3),
    "language-model": ((4, 3), torch.arange(28).view(7, 4) % 3),
    "regression": ((1,), torch.arange(7.0)),
    "segmentation": ((3, 2, 2), torch.arange(28).view(7, 2, 2) % 3),
}
"""For each objective the shape of the outputs for one example, and targets of seven examples."""


def scored(name: str, where: torch.device, step: Step) -> Iterator[Tensor]:
    shape, targets = OUTPUTS[name]
    model = FlatModel(nn.Sequential(nn.Linear(5, math.prod(shape)), nn.Unflatten(1, shape)), where)
    examples = TensorExamples(numbers(7, 5).to(where), targets.to(where))
    model_d = numbers(model.dimension, seed=1).to(where)
    objective = create_objective(ObjectiveSettings(name=name))
    for _ in range(2):
        with step():
            measured = evaluate(model, model_d, examples, objective)
        yield torch.tensor([*measured.metrics.values()])


def own_evaluation(where: torch.device, step: Step) -> Iterator[Tensor]:
    context = training_context(settings_of(where))
    for _ in range(2):
        with step():
            measured = context.workload.evaluate(0, context.model.parameters_d.clone())
        assert measured is not None
        yield torch.tensor([measured.metrics["accuracy"], measured.metrics["loss"]])


def worker(training: str, where: torch.device, step: Step) -> Iterator[Tensor]:
    """Tasks of a client process: the model is received, and the update stored."""
    settings = settings_of(where, training)
    context = training_context(settings)
    workload = context.workload
    subject = Worker(lambda _: workload, post=lambda _: None)
    tensors = (TensorSpec(name="w", shape=(context.model.dimension,), dtype="float32"),)
    plan = welcome(clients=settings.clients, extra=workload.needs_extra or None).model_copy(update={"tensors": tensors})
    received = torch.cat([context.model.parameters_d] * (1 + workload.needs_extra)).cpu().numpy()
    for number in range(2):
        task = Task(
            task_id=number + 1,
            number=number,
            version=number,
            learning_rate=0.1,
            signature="0" * 64,
            payload_bytes=received.nbytes,
        )
        model = jobs.ReceivedModel([memoryview(received.tobytes())])
        given = jobs.Job(client_id=1, welcome=plan, task=task, model=model, is_wanted=lambda: True)
        with step():
            trained = subject._work(given)
            assert isinstance(trained, Trained)
            ready = subject._stored(trained)
        yield _joined(ready.pending.parcel)
        subject._store.settle(jobs.Settlement(client_id=1, run_id=plan.run_id, number=number, accepted=True))


def _joined(frames: Iterable[memoryview | bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(frames), dtype="<f4").copy())


def _policies() -> Iterator[tuple[str, Part]]:
    for name in names():
        yield f"policy {name}", partial(policy, name)
    for stage, values in STAGES.items():
        for name, value in values.items():
            yield f"{name}, with policy fedavg", partial(policy, "fedavg", **{stage: value})


STAGES: Mapping[str, Mapping[str, Any]] = {
    "clip_norm": {"clipping": 3.0},
    "norm": {"step of the mean length": "mean-of-updates"},
    "optimiser": {
        f"server optimiser {name}": OptimiserSettings(name=name)
        for name in get_args(OptimiserSettings.model_fields["name"].annotation)
        if name != "none"
    },
}
"""The stages around a policy: arguments of `wrapped`, and their values by name."""


def _server() -> Iterator[tuple[str, Part]]:
    yield "server, round", rounds
    yield "server, round of a model with buffers", partial(rounds, model={"name": "device.parts:normalised"})
    yield "server, round with rows on disk", partial(rounds, on_disk=True)
    yield "server, evaluation", evaluation
    yield "server, checkpoint", checkpoint


def _compensators() -> Iterator[tuple[str, Part]]:
    for name in compensators.names():
        if name == UNCHANGED:
            continue
        yield f"compensator {name}, round", partial(compensated, name)
        if compensators.find(name).inverts:
            yield f"compensator {name}, update of an open round", partial(begun_early, name)
    for preset in PRESETS:
        if preset != InversionSettings().preset:
            chosen = partial(compensated, "gradient-inversion", preset=preset)
            yield f"compensator gradient-inversion with preset {preset}, round", chosen
    for preset in PRESETS:
        yield f"inversion {preset}, iteration", partial(iterations, preset=preset)
    yield "inversions on another machine, group of two", on_another_machine


def _clients() -> Iterator[tuple[str, Part]]:
    for name in TRAININGS:
        yield f"training {name}, task", partial(tasks, name, Loop)
    yield "app, task", partial(app_tasks, "app")
    yield "app with a model in bfloat16, task", partial(app_tasks, "half_app")
    for name in OBJECTIVES:
        yield f"objective {name}, evaluation", partial(scored, name)
    yield "backend vmap, three tasks", partial(tasks, "sgd", Vmap)
    yield "client, evaluation", own_evaluation
    for name in TRAININGS:
        yield f"client process, task of training {name}", partial(worker, name)


PARTS: Mapping[str, Part] = {
    name: part for parts in (_policies(), _server(), _compensators(), _clients()) for name, part in parts
}
