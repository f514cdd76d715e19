"""The backend of the setting `ray` against the loop, with a process of this machine in place of a cluster."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from simulator.test_backends import SGD, assert_same, jobs_of, loop, settings_of, two_rounds
from support.compensation import network
from support.virtual import computed
from unstale import plugins
from unstale.api.arguments import settings_of as settings_of_arguments
from unstale.cli import main
from unstale.config.compensation import check_cluster, ray_cluster
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.errors import UserError, WorkerLostError
from unstale.simulator.assemble import simulation
from unstale.simulator.backends import ray_tasks
from unstale.simulator.backends.backend import Loop
from unstale.simulator.backends.choose import choose
from unstale.simulator.backends.ray_cluster import RayCluster
from unstale.simulator.backends.worker_jobs import shares
from unstale.workers import pool
from unstale.workers.pool import Pool, RayStart

MOON = {"name": "moon"}
SCAFFOLD = {"name": "scaffold", "steps": 2}


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pool]]:
    """The connections, each a local process that runs the program of a worker."""
    made: list[Pool] = []

    def connected(start: RayStart) -> Pool:
        made.append(Pool(pool.LOCAL, start.program, why_lost="the Ray cluster is gone"))
        return made[-1]

    monkeypatch.setattr(pool, "on_ray", connected)
    yield made
    for one in made:
        one.close()


def on_ray(settings: Settings) -> RayCluster:
    return RayCluster(training_context(settings).workload, settings)


@pytest.mark.parametrize(
    ("training", "model"),
    [(SGD, "support.factories:with_buffers"), (SCAFFOLD, "support.factories:with_dropout"), (MOON, "digits_cnn")],
    ids=["with buffers", "scaffold sends and keeps second vectors", "moon keeps models"],
)
def test_tasks_on_ray_give_the_bits_of_the_loop(pools: list[Pool], training: dict[str, Any], model: str) -> None:
    settings = settings_of(training, model={"name": model}, ray="auto")
    backend = on_ray(settings)
    assert_same(two_rounds(backend, settings), two_rounds(loop(settings), settings))


def test_a_run_is_the_same_on_ray_as_with_the_loop(pools: list[Pool]) -> None:
    def digest(**changes: Any) -> str:
        return simulation(settings_of(MOON, **changes), on_progress=lambda _: None).run().model_digest

    assert digest(ray="auto") == digest()
    assert len(pools) == 1
    assert digest(ray="auto", simulation={"backend": "loop"}) == digest()
    assert len(pools) == 1, "no cluster was needed"


def test_a_lost_cluster_is_replaced_by_this_process_until_it_is_back(
    pools: list[Pool], caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(MOON, ray="auto")
    backend, reference = on_ray(settings), loop(settings)
    for number in range(4):
        if number == 1:
            pools[0].kill()
            with pytest.raises(WorkerLostError):
                pools[0].submit(b"").result()
        if number == 3:
            pools[1].ready.result()
        jobs = jobs_of(settings, number)
        assert_same(computed(backend.compute(jobs)), computed(reference.compute(jobs)))
        for job in jobs:
            backend.keep(job.client_id, number)
            reference.keep(job.client_id, number)
    assert len(pools) == 2
    assert pools[1]._count == 1, "the last jobs were computed there"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "clients are computed in this process, because their task on Ray is lost (the Ray cluster is gone)"
    ]


def test_a_request_has_each_base_once_and_a_worker_keeps_no_state() -> None:
    settings = settings_of(MOON)
    context = training_context(settings)
    jobs = jobs_of(settings)
    same = [replace(job, base=jobs[0].base) for job in jobs]
    one, several = (len(ray_tasks.request_of(some, context.workload.kept)) for some in (same, jobs))
    assert several - one >= 4 * 4 * context.model.dimension
    compute = ray_tasks.begin(ray_tasks.described(settings, context.workload))
    request = ray_tasks.request_of(jobs, context.workload.kept)
    first, second = (ray_tasks.results_of(compute(request, lambda _: None)) for _ in range(2))
    assert_same(computed(first), computed(second))
    assert all(made.local.state for made in computed(first))


def test_the_check_of_the_bits_leaves_the_model_as_it_was() -> None:
    workload = training_context(settings_of(SGD, model={"name": "support.factories:with_buffers"})).workload
    before = [vector.clone() for vector in (workload.model.parameters_d, workload.model.buffers_b)]
    assert ray_tasks.bits(workload) == ray_tasks.bits(workload)
    after = workload.model.parameters_d, workload.model.buffers_b
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"bits": "other"},
            "a worker of the Ray cluster computes another first model or update of client 0 than this process, "
            "expected the same bits; use machines with the same kind of processor, packages, code and data",
        ),
        ({"versions": {"unstale": "0.0.1", "torch": ""}}, "a worker of the Ray cluster has unstale .* expected 0.0.1"),
        (
            {"settings": {"model": {"name": "no.such:model"}}},
            "a worker of the Ray cluster cannot make the run: model 'no.such:model' cannot be imported",
        ),
        (
            {"settings": {"app": "no.such:app"}},
            "a worker of the Ray cluster cannot make the run: app 'no.such:app' cannot be imported",
        ),
    ],
    ids=["other bits", "another version", "no model", "no app"],
)
def test_a_machine_that_cannot_train_the_clients_is_refused(change: dict[str, Any], sentence: str) -> None:
    settings = settings_of(SGD)
    description = ray_tasks.described(settings, training_context(settings).workload)
    with pytest.raises(UserError, match=f"^{sentence}"):
        ray_tasks.begin(json.loads(json.dumps(description | change)))


def test_a_refusal_ends_the_run_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    settings = settings_of(SGD, ray="auto")
    with pytest.raises(UserError, match=r"^ray is 'auto', but Ray is not installed; install it with pip install"):
        choose(settings, training_context(settings), 2)


def test_an_object_of_this_process_is_not_computed_on_ray() -> None:
    name = plugins.name_of("model", lambda input_shape, classes: network())
    settings = settings_of(SGD, model={"name": "logreg"}, ray="auto")
    context = training_context(settings)
    local = settings.model_copy(update={"model": settings.model.model_copy(update={"name": name})})
    with pytest.raises(UserError) as caught:
        choose(local, context, 2)
    assert str(caught.value) == (
        f"ray is 'auto' with model {name!r}, an object that other processes cannot import; define it in a module, or "
        "set simulation.backend to loop"
    )
    assert type(choose(settings.model_copy(update={"ray": None}), context, 2)) is Loop


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("ray", None)),
        ({"ray": "auto"}, ("ray", "auto")),
        ({"ray": "auto", "compensator": {"name": "auto", "ray": "local"}}, ("compensator.ray", "local")),
        ({"compensator": {"name": "auto", "ray": "local"}}, ("compensator.ray", "local")),
    ],
)
def test_inversions_use_the_cluster_of_the_run_unless_they_have_their_own(
    given: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    assert ray_cluster(Settings(**given)) == expected


def test_an_argument_of_python_names_the_cluster() -> None:
    assert settings_of_arguments(None, {"ray": "192.0.2.7:6379"}).ray == "192.0.2.7:6379"


def test_a_server_whose_cluster_has_nothing_to_compute_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = (
        "ray is 'auto' with compensator.name 'none', which inverts nothing, expected gradient-inversion or auto; leave "
        "it out"
    )
    assert main.run(["server", "--ray", "auto"]) == 2
    assert capsys.readouterr().err == f"unstale: {sentence}\n"
    check_cluster(Settings(ray="auto", compensator={"name": "auto"}))
    check_cluster(Settings())


def test_jobs_are_divided_by_their_steps() -> None:
    steps = [4, 1, 1, 1, 1]
    assert shares(jobs_of(settings_of(SGD)), 2, steps.__getitem__, is_fixed=False) == [[0], [1, 2, 3, 4]]
