"""Every backend trains a client on the variant data of its base version."""

from pathlib import Path
from typing import Any

import torch

from support.running import small
from support.variant import small_and_large
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.learner.versions import Version
from unstale.simulator.assemble import simulation
from unstale.simulator.backends.backend import Backend, Computed, Job, Loop
from unstale.simulator.backends.processes import Processes
from unstale.simulator.backends.vmap import Vmap
from unstale.training.registry import create as create_training

CLIENTS = 4
VERSIONS = ((0, 0, 0, 0), (3, 9, 1, 400), (5, 2, 8, 6))
"""Base versions of each client's tasks; some clients get older ones than before."""


def settings_of(folder: Path, training: dict[str, Any]) -> Settings:
    return small(clients=CLIENTS, training=training, policy={"name": "fedavg"}, data=small_and_large(folder))


def jobs_of(settings: Settings, number: int, versions: tuple[int | None, ...]) -> list[Job]:
    model = training_context(settings).model
    return [
        Job(
            client_id=client_id,
            number=number,
            base=Version(model_d=model.parameters_d.clone(), buffers_b=model.buffers_b.clone()),
            learning_rate=0.1,
            evaluate=client_id == 0,
            version=version,
        )
        for client_id, version in enumerate(versions)
    ]


def all_of(backend: Backend, settings: Settings) -> list[Computed]:
    made: list[Computed] = []
    for number, versions in enumerate(VERSIONS):
        made += backend.compute(jobs_of(settings, number, versions))
        for client_id in range(CLIENTS):
            backend.keep(client_id, number)
    backend.close()
    return made


def loop(settings: Settings) -> Loop:
    return Loop(training_context(settings).trainer)


def test_the_loop_equals_the_trainer_at_the_same_version(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"name": "sgd", "steps": 2, "batch_size": 8})
    trainer = training_context(settings).trainer
    made = all_of(loop(settings), settings)
    jobs = [job for number, versions in enumerate(VERSIONS) for job in jobs_of(settings, number, versions)]
    for job, computed in zip(jobs, made, strict=True):
        alone = trainer.train(job.client_id, job.number, job.base.model_d, 0.1, version=job.version)
        assert torch.equal(computed.local.vector_d, alone.vector_d)
    begin = all_of(Loop(training_context(settings).trainer), settings)[:CLIENTS]
    late = loop(settings).compute(jobs_of(settings, 0, (400,) * CLIENTS))
    for early, other in zip(begin, late, strict=True):
        assert not torch.equal(early.local.vector_d, other.local.vector_d)


def test_processes_give_the_bits_of_the_loop_on_variant_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"name": "moon", "steps": 2, "batch_size": 8})
    processes = Processes(training_context(settings), create_training(settings.training), settings, 2)
    processes.wait()
    for ours, theirs in zip(all_of(processes, settings), all_of(loop(settings), settings), strict=True):
        assert torch.equal(ours.local.vector_d, theirs.local.vector_d)
        assert ours.local.loss == theirs.local.loss
        assert ours.evaluation == theirs.evaluation


def test_vmap_approximates_the_loop_on_variant_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"name": "sgd", "steps": 2, "batch_size": 8})
    vmap = Vmap(training_context(settings), create_training(settings.training))
    for ours, theirs in zip(all_of(vmap, settings), all_of(loop(settings), settings), strict=True):
        assert torch.allclose(ours.local.vector_d, theirs.local.vector_d, atol=1e-6)
        assert ours.evaluation == theirs.evaluation


def test_a_run_on_variant_data_is_the_same_with_processes_as_with_the_loop(tmp_path: Path) -> None:
    def digest(backend: str, rate: float) -> str:
        data = small_and_large(tmp_path)
        data["variant"]["rate"] = rate
        chosen = {"backend": backend, "processes": 2}
        settings = small(clients=CLIENTS, rounds=12, data=data, simulation=chosen)
        return simulation(settings, on_progress=lambda _: None).run().model_digest

    assert digest("processes", 1.5) == digest("loop", 1.5)
    assert digest("loop", 1.5) != digest("loop", 3.0)
