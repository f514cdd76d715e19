"""Backend `vmap`: every registered model against the loop, and trainings as replayed graphs against eager ones."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.running import small
from support.simulated_graphs import SimulatedGraphs
from support.virtual import computed
from unstale.config.settings import Settings
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.learner.device import arithmetic_restored
from unstale.learner.versions import Version
from unstale.seeds import Stream, stream
from unstale.simulator.assemble import simulation
from unstale.simulator.backends import local_loops
from unstale.simulator.backends.backend import Backend, Computed, Job, Loop
from unstale.simulator.backends.choose import choose
from unstale.simulator.backends.vmap import Vmap
from unstale.training.models import MODELS
from unstale.training.objectives.regression import Regression
from unstale.training.workload import Workload

CLIENTS = 6
WIDTH, CLASSES = 8, 10  # of the inputs of a model that takes any
SGD = {"name": "sgd", "steps": 3, "batch_size": 8, "momentum": 0.5, "weight_decay": 0.01}
UNEVEN = {"name": "dirichlet", "alpha": 0.3}
TOLERANCE = 1e-5  # of a vector's norm, after few steps (docs/decisions/0022)


def settings_of(training: dict[str, Any] = SGD, **changes: Any) -> Settings:
    given: dict[str, Any] = {"clients": CLIENTS, "training": training, "policy": {"name": "fedavg"}}
    return small(**{**given, "data": {"share": 0.15}, **changes})


def images(folder: Path, model: str) -> dict[str, Any]:
    """A small data set of the inputs that a model takes."""
    shape = MODELS[model][1] or (1, WIDTH, WIDTH)
    rng = stream(0, Stream.BATCHES)
    content: dict[str, Any] = {}
    for part, count in (("train", 40), ("test", 10)):
        content[f"x_{part}"] = rng.integers(0, 256, (count, *shape[1:], shape[0]), dtype=np.uint8)
        content[f"y_{part}"] = np.arange(count) % CLASSES
    np.savez(folder / "data.npz", **content)
    return {"name": "npz", "path": str(folder / "data.npz")}


class Subject:
    """A backend, `vmap` or the loop, and jobs for it."""

    def __init__(self, settings: Settings, backend: Callable[[Workload], Backend]) -> None:
        self.trainer = training_context(settings).trainer
        self._model_d = self.trainer.model.parameters_d.clone()
        self._clients = settings.clients
        self._backend = backend(self.trainer)

    def all_of(self, number: int = 0, clients: int | None = None, first_client: int = 0) -> list[Computed]:
        """The results of a job of each client, from a base of its own."""
        jobs = [
            Job(
                client_id=client_id,
                number=number,
                base=Version(model_d=self._model_d * (1 + 0.01 * client_id), buffers_b=self._model_d[:0]),
                learning_rate=0.02 + 0.01 * client_id,
                evaluate=client_id == 1,
            )
            for client_id in range(first_client, self._clients if clients is None else clients)
        ]
        return computed(self._backend.compute(jobs))

    def times(self, count: int) -> list[Computed]:
        return [made for number in range(count) for made in self.all_of(number)]


def vmap(settings: Settings, graphs: SimulatedGraphs | None = None) -> Subject:
    return Subject(settings, lambda workload: Vmap(workload, graphs))


def loop(settings: Settings) -> Subject:
    return Subject(settings, Loop)


def assert_close(ours: list[Computed], theirs: list[Computed]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        difference_d = our.local.vector_d - their.local.vector_d.cpu()
        assert float(difference_d.norm()) <= TOLERANCE * float(their.local.vector_d.norm())
        assert our.local.loss == pytest.approx(their.local.loss, rel=1e-5)
        for field in ("kind", "num_examples", "batch_examples", "steps", "learning_rate"):
            assert getattr(our.local, field) == getattr(their.local, field)
        assert our.evaluation == their.evaluation


def vectors(made: list[Computed]) -> list[Tensor]:
    return [one.local.vector_d for one in made]


@pytest.mark.parametrize("graphs", [None, SimulatedGraphs], ids=["eager", "graphs"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_trains_as_in_the_loop(
    tmp_path: Path, model: str, graphs: Callable[[], SimulatedGraphs] | None
) -> None:
    steps = 1 if model == "resnet18" else 2  # so that the test takes seconds
    training = {"name": "sgd", "steps": steps, "batch_size": 2, "weight_decay": 0.01}
    settings = settings_of(training, clients=2, model={"name": model}, data=images(tmp_path, model))
    assert_close(vmap(settings, graphs and graphs()).all_of(), loop(settings).all_of())


@pytest.mark.parametrize("graphs", [None, SimulatedGraphs], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    "training",
    [
        {"name": "gradient", "batch_size": 8},
        SGD,
        {"name": "sgd", "epochs": 2, "batch_size": 8},
        {"name": "fedprox", "steps": 3, "batch_size": 8, "mu": 0.5, "momentum": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["digits_cnn", "support.factories:with_dropout", "support.factories:with_frozen"])
def test_clients_with_different_numbers_of_examples_train_as_in_the_loop(
    model: str, training: dict[str, Any], graphs: Callable[[], SimulatedGraphs] | None
) -> None:
    settings = settings_of(training, model={"name": model}, partition={**UNEVEN, "min_examples": 2})
    made = vmap(settings, graphs and graphs()).times(4)
    assert len({one.local.num_examples for one in made}) == CLIENTS
    assert_close(made, loop(settings).times(4))


@pytest.mark.parametrize(
    "training",
    [{"name": "gradient", "batch_size": 8}, SGD, {"name": "fedprox", "epochs": 1, "batch_size": 8, "mu": 0.5}],
    ids=str,
)
def test_replayed_trainings_have_the_bits_of_eager_ones(training: dict[str, Any]) -> None:
    # The simulated graphs also fail on an operation for which a device waits.
    model = {"name": "support.factories:with_dropout"}
    settings = settings_of(training, model=model, partition={**UNEVEN, "min_examples": 2})
    used, refused = SimulatedGraphs(), SimulatedGraphs(refuses=True)
    ours, theirs = (vmap(settings, graphs).times(5) for graphs in (used, refused))
    assert all(torch.equal(our, their) for our, their in zip(vectors(ours), vectors(theirs), strict=True))
    assert [one.local.loss for one in ours] == [one.local.loss for one in theirs]
    assert used.done.count("replay") > 0
    assert "replay" not in refused.done


def test_a_local_training_is_one_replay_where_all_clients_have_as_many_steps() -> None:
    settings, graphs = settings_of(model={"name": "digits_cnn"}), SimulatedGraphs()
    subject = vmap(settings, graphs)
    subject.times(local_loops.WARM_UP)
    graphs.done.clear()
    subject.times(3)
    assert graphs.done == ["upload", "upload", "capture", "replay", *(["upload", "upload", "replay"] * 2)]


def test_a_step_is_one_replay_where_clients_have_different_numbers_of_steps() -> None:
    training = {"name": "sgd", "epochs": 1, "batch_size": 8}
    settings, graphs = settings_of(training, partition={**UNEVEN, "min_examples": 2}), SimulatedGraphs()
    made = vmap(settings, graphs).times(4)
    steps = sorted({one.local.steps for one in made})
    assert len(steps) > 2
    counts = Counter(graphs.done)
    assert counts["replay"] + counts["warm-up"] == 4 * steps[-1]
    # Six, four, two and one client train together at some step, as eight, four, two and one.
    assert counts["capture"] <= 4


def test_one_graph_serves_numbers_of_clients_up_to_its_own() -> None:
    settings, graphs = settings_of(model={"name": "digits_cnn"}), SimulatedGraphs()
    ours, theirs = vmap(settings, graphs), loop(settings)
    for number, clients in enumerate((6, 5, 6, 5, 6)):
        assert_close(ours.all_of(number, clients), theirs.all_of(number, clients))
    assert graphs.done.count("capture") == 1


def test_results_are_not_changed_by_later_trainings() -> None:
    subject = vmap(settings_of(model={"name": "digits_cnn"}), SimulatedGraphs())
    first = vectors(subject.all_of())
    before = [vector_d.clone() for vector_d in first]
    subject.times(3)
    assert all(torch.equal(one, other) for one, other in zip(first, before, strict=True))


def test_examples_that_fill_up_a_mini_batch_are_the_clients_own() -> None:
    training = {"name": "sgd", "epochs": 1, "batch_size": 8}
    settings = settings_of(training, model={"name": "digits_cnn"}, partition={**UNEVEN, "min_examples": 2})
    subject = vmap(settings, SimulatedGraphs())
    subject.trainer.pool().inputs.fill_(math.nan)  # until a client's examples are there
    made = subject.all_of(first_client=3)
    assert any(one.local.num_examples % 8 for one in made)
    assert_close(made, loop(settings).all_of(first_client=3))


class SmallDevice(SimulatedGraphs):
    """A device without the memory to train more than two clients together."""

    def warm_up(self, work: Callable[[], None]) -> None:
        (loops,) = work.args  # type: ignore[attr-defined]
        if len(loops.parameters_Kd) > 2:
            raise torch.OutOfMemoryError
        super().warm_up(work)


def test_batches_are_halved_until_they_fit_into_the_memory_of_the_device() -> None:
    settings = settings_of(model={"name": "digits_cnn"})
    graphs = SmallDevice()
    assert_close(vmap(settings, graphs).all_of(), loop(settings).all_of())
    assert graphs.done.count("warm-up") == 2  # of the first two pairs; the third is a replay
    assert graphs.done.count("replay") == 1


def test_a_run_ends_with_almost_the_same_model_as_with_the_loop() -> None:
    def model_d(backend: str) -> Tensor:
        settings = settings_of(model={"name": "digits_cnn"}, rounds=4, simulation={"backend": backend})
        run = simulation(settings, on_progress=lambda _: None)
        run.run()
        return run.sent.model_d

    ours, theirs = model_d("vmap"), model_d("loop")
    assert float((ours - theirs).norm()) <= TOLERANCE * float(theirs.norm())


@pytest.mark.parametrize(
    ("training", "changes", "expected"),
    [
        (SGD, {}, Vmap),
        (SGD, {"model": {"name": "support.factories:with_dropout"}}, Vmap),
        (SGD, {"model": {"name": "support.factories:with_buffers"}}, Loop),
        (SGD, {"simulation": {"backend": "loop"}}, Loop),
        ({"name": "moon"}, {}, Loop),
    ],
)
def test_auto_is_vmap_on_cuda_where_it_can_compute_the_run(
    training: dict[str, Any], changes: dict[str, Any], expected: type[Backend]
) -> None:
    settings = settings_of(training, rounds=10**7, **changes)
    context = replace(training_context(settings), device=torch.device("cuda"))
    assert type(choose(settings, context, 2)) is expected


def test_graphs_need_a_classification() -> None:
    settings = settings_of(model={"name": "digits_cnn"})
    trainer = replace(training_context(settings).trainer, objective=Regression())
    with pytest.raises(UserError, match=r"expected objective\.name classification on a GPU, got Regression; leave"):
        Vmap(trainer, SimulatedGraphs())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("model", ["digits_cnn", "support.factories:with_dropout"])
@pytest.mark.parametrize("length", [{"steps": 3}, {"epochs": 1}], ids=str)
def test_a_gpu_trains_batches_as_the_loop_there(model: str, length: dict[str, int]) -> None:
    training = {**SGD, "steps": None, **length}
    partition = {**UNEVEN, "min_examples": 2}
    settings = settings_of(training, model={"name": model}, partition=partition, device="cuda")
    with arithmetic_restored():
        made, replayed = vmap(settings).times(4), vmap(settings).times(4)
        assert_close(made, loop(settings).times(4))
    assert all(torch.equal(one, other) for one, other in zip(vectors(made), vectors(replayed), strict=True))
