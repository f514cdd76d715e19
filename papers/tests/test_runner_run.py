"""A run's record against the run itself."""

from math import exp, isnan

import pytest

from unstale.config import Settings
from unstale.metrics.progress import Progress
from unstale.settings.learning import ObjectiveSettings
from unstale.simulator.assemble import simulation
from unstale_papers.record import Record
from unstale_papers.runners import measure

SETTINGS = Settings(
    clients=12,
    rounds=30,
    evaluate_every=10,
    model={"name": "logreg"},
    partition={"name": "iid"},
    trigger={"name": "k-async", "k": 3},
    training={"steps": 2, "batch_size": 16},
    policy={"name": "dynsgd"},
    run={"durability": "off"},
    simulation={"backend": "loop"},
)


@pytest.fixture(scope="module")
def record() -> Record:
    done: list[float] = []
    found = measure("run", SETTINGS, {"training_loss_every": 2}, on_progress=done.append)
    assert done == [version / 30 for version in range(1, 31)]
    return found


def test_a_run_equals_that_of_simulate(record: Record) -> None:
    progress: list[Progress] = []
    outcome = simulation(SETTINGS, on_progress=progress.append).run()
    assert record.model_digest == outcome.model_digest
    assert record.version_E == [now.version for now in progress] == [0, 10, 20, 30]
    assert record.accuracy_E == [now.metrics["accuracy"] for now in progress]
    assert record.loss_E == [float(f"{now.metrics['loss']:.7g}") for now in progress]
    assert record.time_E == [now.elapsed_s for now in progress]


def test_each_round_has_its_measurements(record: Record) -> None:
    assert len(record.training_loss_R) == len(record.staleness_R) == len(record.counted_R) == 30
    assert record.steps == 30 * 3 * 2
    assert record.staleness_R[0] == 0.0
    # With N clients and K per round, updates are N / K - 1 rounds stale on average; dynsgd weights stale ones less.
    assert 0 < sum(record.staleness_R) / 30 < 12 / 3 - 1
    assert set(record.counted_R) <= {1, 2, 3}
    assert record.counted_R[0] == record.heavy_R[0] == 3


def test_clients_and_all_training_examples_are_measured(record: Record) -> None:
    assert len(record.client_accuracy_N) == 12
    mean = sum(one for one in record.client_accuracy_N if one is not None) / 12
    assert mean == pytest.approx(record.accuracy_E[-1], abs=0.03)  # shares of the test set are nearly equal
    versions, losses = zip(*record.found["training_loss"], strict=True)
    assert versions == (10, 30)
    assert losses[1] < losses[0]
    assert exp(-losses[1]) > 0.1


def test_the_last_model_has_its_loss_over_all_examples() -> None:
    # Versions 0, 2, 4 and 6 are evaluated: the third has a loss by interval, and the last always has one.
    short = SETTINGS.model_copy(update={"rounds": 6, "evaluate_every": 2})
    found = measure("run", short, {"training_loss_every": 3}, on_progress=lambda _: None).found
    assert [version for version, _ in found["training_loss"]] == [4, 6]


def test_a_record_is_read_as_written(record: Record) -> None:
    assert Record.from_json(record.to_json()).to_json() == record.to_json()


def test_a_run_of_another_objective_has_the_curve_of_its_main_metric() -> None:
    other = SETTINGS.model_copy(update={"objective": ObjectiveSettings(name="helpers.objectives:Errors")})
    record = measure("run", other, {}, on_progress=lambda _: None)
    progress: list[Progress] = []
    outcome = simulation(other, on_progress=progress.append).run()
    assert record.model_digest == outcome.model_digest
    name, values = record.main
    assert (name, values) == ("errors", [float(f"{now.metrics['errors']:.7g}") for now in progress])
    assert all(map(isnan, [*record.accuracy_E, *record.loss_E]))
    assert record.client_accuracy_N == [None] * 12


def test_a_diverging_run_ends_with_its_reason() -> None:
    training = SETTINGS.training.model_copy(update={"learning_rate": 1e6, "steps": 50})
    wild = SETTINGS.model_copy(update={"training": training, "rounds": 10**6, "evaluate_every": 10**6})
    record = measure("run", wild, {}, on_progress=lambda _: None)
    assert "training diverges" in record.found["ended"]
    assert len(record.training_loss_R) < 10**6


def test_refused_updates_are_counted_by_reason(record: Record) -> None:
    server = SETTINGS.server.model_copy(update={"norm_max": 0.5})
    found = measure("run", SETTINGS.model_copy(update={"server": server}), {}, on_progress=lambda _: None).found
    assert "the last 120 tasks made no update that counts" in found["ended"]
    assert found["refused"] == {"norm-too-large": 120}
    assert "refused" not in record.found
