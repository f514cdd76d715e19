"""Backends of simulated clients: each against the loop, and the loop against the trainer."""

import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from support.running import small
from support.virtual import computed
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.learner.versions import Version
from unstale.simulator.assemble import simulation
from unstale.simulator.backends import client_worker
from unstale.simulator.backends.backend import Backend, Computed, Job, Loop
from unstale.simulator.backends.choose import choose
from unstale.simulator.backends.processes import Processes
from unstale.simulator.backends.shared_memory import ROWS, SharedRows, make_file
from unstale.simulator.backends.vmap import Vmap
from unstale.training.local import LocalUpdate
from unstale.training.registry import create as create_training
from unstale.training.trainer import Trainer
from unstale.training.workload import ClientTask, Declined, NotTrained, TrainingDiverged, TrainingFailed
from unstale.workers import pool

CLIENTS = 5
ROUND_SIZE = 2  # most updates of a round
SGD = {"name": "sgd", "steps": 3, "momentum": 0.5, "weight_decay": 0.01}


def settings_of(training: dict[str, Any], **changes: Any) -> Settings:
    policy = {"name": "scaffold" if training["name"] == "scaffold" else "fedavg"}
    return small(clients=CLIENTS, training=training, policy=policy, **changes)


def loop(settings: Settings) -> Loop:
    return Loop(training_context(settings).workload)


def processes(settings: Settings, count: int = 2) -> Processes:
    backend = Processes(training_context(settings).workload, settings, count)
    backend.wait()
    return backend


def jobs_of(settings: Settings, number: int = 0) -> list[Job]:
    """A job of each client, from a base of its own."""
    model = training_context(settings).model
    extra = create_training(settings.training).needs_extra
    return [
        Job(
            client_id=client_id,
            number=number,
            base=Version(
                model_d=model.parameters_d + 0.01 * client_id,
                buffers_b=model.buffers_b + 0.01 * client_id,
                extra_d=torch.full_like(model.parameters_d, 0.001) if extra else None,
            ),
            learning_rate=0.1 + 0.01 * client_id,
            evaluate=client_id % 2 == 0,
        )
        for client_id in range(CLIENTS)
    ]


def vectors(computed: Computed) -> list[Tensor]:
    local = computed.local
    return [part for part in (local.vector_d, local.buffers_b, local.extra_d) if part is not None]


def assert_same(ours: list[Computed], theirs: list[Computed]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(vectors(our), vectors(their), strict=True))
        for field in ("kind", "num_examples", "batch_examples", "steps", "loss", "learning_rate"):
            assert getattr(our.local, field) == getattr(their.local, field)
        assert our.evaluation == their.evaluation


def two_rounds(backend: Backend, settings: Settings) -> list[Computed]:
    """Each client computes twice; the first updates of even clients are accepted."""
    made = computed(backend.compute(jobs_of(settings)))
    for client_id in range(CLIENTS):
        (backend.drop if client_id % 2 else backend.keep)(client_id, 0)
    return made + computed(backend.compute(jobs_of(settings, number=1)))


def test_the_loop_equals_the_trainer_task_by_task() -> None:
    settings = settings_of(SGD)
    trainer = training_context(settings).trainer
    jobs = jobs_of(settings)
    for job, made in zip(jobs, computed(loop(settings).compute(jobs)), strict=True):
        alone = trainer.train(job.task)
        assert torch.equal(made.local.vector_d, alone.vector_d)
        assert made.local.loss == alone.loss
        own = trainer.evaluate(job.client_id, job.base.model_d) if job.evaluate else None
        assert made.evaluation == own


@pytest.mark.parametrize(
    ("training", "model"),
    [(SGD, "support.factories:with_buffers"), ({"name": "scaffold", "steps": 2}, "support.factories:with_dropout")],
    ids=["with buffers", "scaffold sends and keeps second vectors"],
)
def test_processes_give_the_bits_of_the_loop(training: dict[str, Any], model: str) -> None:
    settings = settings_of(training, model={"name": model})
    backend = processes(settings)
    assert_same(two_rounds(backend, settings), two_rounds(loop(settings), settings))
    backend.close()


@pytest.fixture(scope="module")
def backend_of_two() -> Iterator[tuple[Processes, Settings]]:
    settings = settings_of(SGD)
    backend = processes(settings)
    yield backend, settings
    backend.close()


def test_more_jobs_than_rows_are_computed_in_batches(backend_of_two: tuple[Processes, Settings]) -> None:
    backend, settings = backend_of_two
    jobs = [job for number in range(2 * ROWS // CLIENTS) for job in jobs_of(settings, number)]
    assert len(jobs) > ROWS
    assert_same(computed(backend.compute(jobs)), computed(loop(settings).compute(jobs)))


def test_the_vectors_belong_to_the_caller(backend_of_two: tuple[Processes, Settings]) -> None:
    backend, settings = backend_of_two
    first = computed(backend.compute(jobs_of(settings)))
    before = [made.local.vector_d.clone() for made in first]
    backend.compute(jobs_of(settings, number=1))
    assert all(torch.equal(made.local.vector_d, vector_d) for made, vector_d in zip(first, before, strict=True))


def test_no_process_gets_more_than_a_fair_share_of_the_steps(backend_of_two: tuple[Processes, Settings]) -> None:
    backend, settings = backend_of_two
    jobs = [job for job in jobs_of(settings) if job.client_id % 2 == 0] + jobs_of(settings)[1:2]
    here, there = backend._assigned(jobs, 2)  # clients 0, 2, 4 and 1
    assert (len(here), len(there)) == (2, 2)
    assert 3 in there, "a client stays in its process if the division is fair"


def test_a_killed_process_is_one_error_sentence() -> None:
    settings = settings_of(SGD)
    backend = Processes(training_context(settings).workload, settings, 2)
    os.kill(backend._workers[0].pool._process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="ended by signal 9, perhaps for want of memory; set simulation"):
        backend.wait()
    backend.close()


def test_a_failure_in_a_process_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(SGD)
    monkeypatch.setattr(pool, "LOCAL", "unstale.there_is_no_such_module")
    backend = Processes(training_context(settings).workload, settings, 2)
    with pytest.raises(RuntimeError, match="ended with exit code 1"):
        backend.wait()
    backend.close()


def test_close_and_the_end_of_a_backend_end_its_processes() -> None:
    settings = settings_of(SGD)
    closed = Processes(training_context(settings).workload, settings, 3)
    processes_started = [worker.pool._process for worker in closed._workers]
    closed.close()
    closed.close()
    forgotten = Processes(training_context(settings).workload, settings, 2)
    processes_started += [worker.pool._process for worker in forgotten._workers]
    del forgotten
    assert [process.poll() for process in processes_started] == [-signal.SIGKILL] * 3


def test_rows_contain_the_written_parts() -> None:
    file = make_file(3, 2, extra=True)
    ours, theirs = (SharedRows(file, 3, 2, extra=True) for _ in range(2))
    os.close(file)
    ours.write(ROWS - 1, torch.arange(3.0), torch.arange(3.0, 5.0), torch.arange(5.0, 8.0))
    vector_d, buffers_b, extra_d = theirs.parts(ROWS - 1)
    assert extra_d is not None
    assert [part.tolist() for part in (vector_d, buffers_b, extra_d)] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    with pytest.raises(AssertionError, match="3 numbers, expected 8"):
        ours.write(0, torch.zeros(3))
    file = make_file(3, 0, extra=False)
    assert SharedRows(file, 3, 0, extra=False).version(0).extra_d is None
    os.close(file)


@pytest.mark.parametrize(
    "error", [Declined("low battery"), TrainingFailed("no rows"), TrainingDiverged("the loss is nan")], ids=str
)
def test_a_task_without_an_update_is_one_result_among_the_others(error: NotTrained) -> None:
    class Unwilling(Trainer):
        @override
        def train_each(self, tasks: Iterable[ClientTask]) -> Iterator[LocalUpdate | NotTrained]:
            for task, made in zip(tasks, super().train_each(tasks), strict=True):
                yield error if task.client_id == 1 else made

    settings = settings_of(SGD)
    trainer = training_context(settings).trainer
    trainer.__class__ = Unwilling
    jobs = jobs_of(settings)
    first, second, *others = Loop(trainer).compute(jobs)
    assert second is error
    assert_same(computed([first, *others]), computed(loop(settings).compute([jobs[0], *jobs[2:]])))

    file = make_file(trainer.model.dimension, 0, extra=False)
    rows = SharedRows(file, trainer.model.dimension, 0, extra=False)
    os.close(file)
    request = json.loads(client_worker.request_of(jobs, [], rows))
    reply = json.dumps(client_worker._reply(request, trainer, rows, {})).encode()
    here, there, *rest = client_worker.results_of(reply, rows)
    assert (type(there), str(there)) == (type(error), str(error))
    assert_same(computed([here, *rest]), computed([first, *others]))


def test_vmap_needs_the_built_in_training() -> None:
    with pytest.raises(UserError, match="expected the built-in training of a data set, got object; leave"):
        Vmap(object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("training", "model", "expected"),
    [
        ({"name": "moon"}, "digits_cnn", "training.name gradient, sgd or fedprox, got 'moon'"),
        (SGD, "support.factories:with_buffers", "a model without buffers"),
        (SGD, "support.factories:with_noise", "a model of known layers without random numbers other than dropout's"),
        (SGD, "support.factories:with_one_dropout_twice", "a model that uses each dropout layer once"),
    ],
)
def test_a_model_that_vmap_does_not_support_is_refused(training: dict[str, Any], model: str, expected: str) -> None:
    settings = settings_of(training, model={"name": model}, simulation={"backend": "vmap"})
    with pytest.raises(UserError, match=f"simulation.backend is 'vmap', expected {expected}"):
        choose(settings, training_context(settings), ROUND_SIZE)


@pytest.mark.parametrize(
    ("rounds", "simulation_settings", "expected"),
    [
        (10, {}, Loop),
        (10**7, {"processes": 2}, Processes),
        (10**7, {"processes": 1}, Loop),
        (10, {"backend": "processes", "processes": 1}, Processes),
        (10**7, {"backend": "loop"}, Loop),
        (10, {"backend": "vmap"}, Vmap),
    ],
)
def test_auto_takes_processes_for_a_long_run_on_several_cores(
    rounds: int, simulation_settings: dict[str, Any], expected: type[Backend]
) -> None:
    model = {"name": "digits_cnn"}
    settings = settings_of(SGD, rounds=rounds, model=model, simulation=simulation_settings)
    backend = choose(settings, training_context(settings), ROUND_SIZE)
    assert type(backend) is expected
    backend.close()


def test_tiny_tasks_are_computed_in_this_process() -> None:
    settings = settings_of({"name": "gradient"}, model={"name": "logreg"}, rounds=10**8, simulation={"processes": 2})
    assert type(choose(settings, training_context(settings), ROUND_SIZE)) is Loop


def test_processes_are_refused_on_a_gpu() -> None:
    settings = settings_of(SGD, simulation={"backend": "processes"})
    context = replace(training_context(settings), device=torch.device("meta"))
    with pytest.raises(UserError, match="'processes', which is for the CPU, with device meta"):
        choose(settings, context, ROUND_SIZE)


def test_a_run_is_the_same_with_processes_as_with_the_loop() -> None:
    def digest(backend: str) -> str:
        chosen = {"backend": backend, "processes": 2}
        run = simulation(settings_of({"name": "moon"}, simulation=chosen), on_progress=lambda _: None)
        return run.run().model_digest

    assert digest("processes") == digest("loop")
