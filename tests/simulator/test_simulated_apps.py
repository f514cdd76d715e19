"""Runs of apps in virtual time: the laws of their rounds, their states, and what happens to clients that fail."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support import apps
from support.running import small
from unstale import flat
from unstale.config.settings import Settings
from unstale.coordinator import actions
from unstale.errors import UserError
from unstale.metrics.progress import Outcome, Progress
from unstale.simulator.assemble import simulation
from unstale.training.initialise import seeded

RATE = 0.125  # a power of two: dividing an update by it, and multiplying it, is exact


def app_run(name: str, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "app": f"support.apps:{name}",
        "rounds": 4,
        "model": {},
        "partition": {},
        "training": {"learning_rate": RATE},
        "trigger": {"name": "sync"},
        "policy": {"name": "fedavg"},
        "evaluate_every": 1,
    }
    return small(**{**values, **changes})


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    apps.write_tables(tmp_path, 4)
    monkeypatch.setenv(apps.FOLDER, str(tmp_path))
    return tmp_path


def run(settings: Settings) -> tuple[Outcome, list[Progress]]:
    progress: list[Progress] = []
    simulated = simulation(settings, on_progress=progress.append)
    outcome = simulated.run()
    simulated.save()
    return outcome, progress


def vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def local_loop(module: nn.Module, clients: int, rounds: int) -> Tensor:
    """Federated averaging, written by hand: each client trains a copy; the step is the weighted mean of the changes."""
    now_d = vector([*module.parameters()])
    sizes = [len(apps.table(client)[0]) for client in range(clients)]
    for _ in range(rounds):
        step_d = torch.zeros_like(now_d)
        for client, size in enumerate(sizes):
            nn.utils.vector_to_parameters(now_d.clone(), module.parameters())
            apps.descend(module, apps.table(client), RATE)
            step_d += size / sum(sizes) * (now_d - vector([*module.parameters()]))
        now_d = now_d - step_d
    return now_d


def first_model(make: Any = apps.model) -> nn.Module:
    with seeded(0):
        module: nn.Module = make()
    return module


def test_one_client_in_rounds_trains_as_its_local_loop_bit_for_bit() -> None:
    outcome, _ = run(app_run("regression", clients=1))
    assert outcome.model_digest == flat.digest(local_loop(first_model(), 1, 4))


def test_clients_in_rounds_make_the_weighted_mean_of_their_models(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    run(app_run("regression", clients=3, save_model=str(file)))
    stored = load_file(file)
    module = first_model()
    found_d = vector([stored[name] for name, _ in module.named_parameters()])
    torch.testing.assert_close(found_d, local_loop(module, 3, 4), rtol=1e-6, atol=1e-7)


def test_metrics_of_clients_take_the_place_of_a_test_set_which_an_app_may_have_too() -> None:
    outcome, progress = run(app_run("regression", clients=3, rounds=6, evaluate_clients_every=2))
    assert outcome.metrics == {} and all(now.metrics == {} for now in progress)
    assert list(outcome.client_metrics) == ["mae"]
    first = next(now for now in progress if now.client_metrics)
    assert outcome.client_metrics["mae"].mean < first.client_metrics["mae"].mean
    assert outcome.training_metrics["tasks"].mean == 6
    outcome, progress = run(app_run("measured", clients=3, rounds=6))
    assert [*outcome.metrics] == ["mae"]
    assert outcome.metrics["mae"] == progress[-1].metrics["mae"] < progress[0].metrics["mae"]


def test_clients_evaluate_an_app_as_often_as_the_server_unless_told_otherwise() -> None:
    shown, _ = run(app_run("regression", clients=3, rounds=6, evaluate_every=2))
    asked, _ = run(app_run("regression", clients=3, rounds=6, evaluate_clients_every=2))
    assert shown.client_metrics == asked.client_metrics
    assert [*shown.client_metrics] == ["mae"]
    hidden, _ = run(app_run("regression", clients=3, rounds=6, evaluate_every=2, evaluate_clients_every=None))
    assert hidden.client_metrics == {}
    assert hidden.model_digest == shown.model_digest
    without, _ = run(app_run("last_layer", clients=3, rounds=6, evaluate_every=2))  # has no evaluate function
    assert without.client_metrics == {}


ASYNC: dict[str, Any] = {"clients": 3, "trigger": {"name": "k-async", "k": 2}, "rounds": 6}


@pytest.mark.parametrize("app", ["regression", "normed", "last_layer", "half", "drawing", "failing"])
def test_a_run_is_the_same_bits_again(app: str) -> None:
    first, again = (run(app_run(app, **ASYNC))[0] for _ in range(2))
    assert again.model_digest == first.model_digest
    assert again.updates == first.updates


def test_a_run_is_the_same_bits_in_processes() -> None:
    alone, _ = run(app_run("drawing", **ASYNC))
    shared, _ = run(app_run("drawing", simulation={"backend": "processes", "processes": 2}, **ASYNC))
    assert shared.model_digest == alone.model_digest
    assert shared.updates == alone.updates


def test_only_exchanged_tensors_change_and_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    run(app_run("last_layer", clients=2, save_model=str(file)))
    assert [*load_file(file)] == ["2.bias", "2.weight"]


def test_a_model_in_half_precision_is_saved_in_it_and_learns(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    outcome, progress = run(app_run("half", clients=3, rounds=12, evaluate_clients_every=1, save_model=str(file)))
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}
    first = next(now for now in progress if now.client_metrics)
    assert outcome.client_metrics["mae"].mean < 0.8 * first.client_metrics["mae"].mean


def test_buffers_are_averaged_over_the_clients(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    run(app_run("normed", clients=2, rounds=1, save_model=str(file)))
    means, sizes = [], [12, 20]
    for client in range(2):
        module = first_model(apps.with_buffers)
        apps.descend(module, apps.table(client), RATE)
        means.append(module[1].running_mean)
    wanted = (sizes[0] * means[0] + sizes[1] * means[1]) / sum(sizes)
    stored = load_file(file)
    torch.testing.assert_close(stored["1.running_mean"], wanted)
    assert "1.num_batches_tracked" not in stored


def test_a_run_begins_with_a_file_and_a_saved_model_is_one(tmp_path: Path) -> None:
    file = str(tmp_path / "first.safetensors")
    run(app_run("normed", clients=1, rounds=2, save_model=file))
    half_way, _ = run(app_run("normed", clients=1, rounds=1, initial=file))
    whole, _ = run(app_run("normed", clients=1, rounds=3))
    assert half_way.model_digest == whole.model_digest  # an app without state has no other memory than the model


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (None, "cannot be read"),
        ({"0.bias": torch.zeros(4)}, r"has no '0.weight', expected shape \[4, 2\]"),
        ({"0.weight": torch.zeros(4)}, r"has shape \[4\] for '0.weight', expected shape \[4, 2\]"),
        ({**dict(apps.model().state_dict()), "3.bias": torch.zeros(1)}, "has '3.bias', which the app's model does not"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tensors: dict[str, Tensor] | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "first.safetensors"
    if tensors is None:
        file.write_text("no tensors")
    else:
        save_file(tensors, file)
    with pytest.raises(UserError, match=message):
        run(app_run("regression", initial=str(file)))


class Verdicts:
    """Outcomes of updates by client, in the order of its tasks."""

    def __init__(self) -> None:
        self.of: dict[int, list[str]] = {}

    def __call__(self, _: Any, what_to_do: Sequence[actions.Action]) -> None:
        for action in what_to_do:
            if isinstance(action, actions.Acknowledge):
                self.of.setdefault(action.client_id, []).append(action.outcome.value)


def test_a_client_whose_training_raises_gives_the_task_back_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome, _ = run(app_run("failing", clients=2, rounds=6))
    assert (outcome.reason, outcome.versions) == ("finished", 6)
    assert "the app's train function: ValueError: no rows" in caplog.text
    assert "in _failing" in caplog.text  # its traceback


def test_a_client_without_data_does_not_stop_the_others(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    (files / "1.npz").unlink()
    outcome, _ = run(app_run("regression", clients=2, trigger={"name": "async"}))
    assert outcome.reason == "finished"
    assert "client 1: the app's data function: FileNotFoundError" in caplog.text


def test_a_rejected_update_leaves_the_state_of_its_client() -> None:
    # The update of every second task is rejected, because its norm overflows.
    verdicts = Verdicts()
    apps.FOUND.clear()
    simulation(app_run("refused", clients=1, rounds=3), on_progress=lambda _: None, observe=verdicts).run()
    assert verdicts.of[0] == ["accepted", "rejected", "accepted", "rejected", "accepted"]
    assert apps.FOUND == [0, 1, 1, 2, 2]  # accepted updates before each task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policy": {"name": "scaffold"}},
            "policy.name is 'scaffold', whose clients train with training.name 'scaffold'",
        ),
        ({"policy": {"name": "moon"}}, "policy.name is 'moon', whose clients train with training.name 'moon'"),
        (
            {"compensator": {"name": "gradient-inversion"}},
            "compensator.name is 'gradient-inversion', which needs to know",
        ),
        ({"compensator": {"name": "auto"}}, "compensator.name is 'auto', which needs to know how clients train"),
        ({"compensator": {"name": "oracle"}}, "compensator.name is 'oracle', which needs to know how clients train"),
        (
            {"compensator": {"name": "first-order", "settings": {"strength": "adaptive"}}},
            "compensator.name is 'first-order' with strength adaptive, which needs to know",
        ),
        ({"model": {"name": "logreg"}}, "model is set together with app 'support.apps:regression', which has its own"),
        ({"data": {"name": "mnist"}}, "data.name is set together with app"),
        ({"partition": {"name": "iid"}}, "partition is set together with app"),
        ({"training": {"batch_size": 3}}, "training is set together with app .* trains itself, with training.learning"),
        ({"objective": {"name": "regression"}}, "objective is set together with app"),
        ({"attack": {"name": "noise"}}, "attack is set together with app"),
        ({"simulation": {"backend": "vmap"}}, "vmap"),
        ({"scenario": {"name": "staleness-40"}}, "selects clients by their classes, but the data is private"),
        ({"app": "support.apps:table"}, "app 'support.apps:table' is of type function, expected an unstale.App"),
        (
            {"app": "support.apps:nothing"},
            "app 'support.apps:nothing': support.apps has no 'nothing', expected package.module:name",
        ),
        ({"app": "support.nothing:app"}, "app 'support.nothing:app' cannot be imported"),
        ({"app": None, "initial": "a file"}, "initial 'a file' cannot be read"),
    ],
)
def test_what_does_not_go_together_with_an_app_is_refused_in_one_sentence(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        run(app_run("regression", **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("trigger", [{"name": "sync"}, {"name": "async"}, {"name": "k-async", "k": 2}])
def test_a_state_counts_each_accepted_update_once_though_messages_are_lost(trigger: dict[str, Any]) -> None:
    accepted = apps.Accepted(3)
    settings = app_run("counting", clients=3, rounds=25, trigger=trigger, scenario={"name": "flaky"})
    outcome = simulation(settings, on_progress=lambda _: None, observe=accepted).run()
    accepted.check()
    assert outcome.updates["rejected"] > 0
    assert len(accepted.tasks) == outcome.updates["accepted"] >= 25


def test_first_order_compensation_works_for_an_app() -> None:
    changes: dict[str, Any] = {"clients": 3, "rounds": 6, "trigger": {"name": "async"}}
    plain, _ = run(app_run("regression", **changes))
    compensated, _ = run(app_run("regression", compensator={"name": "first-order"}, **changes))
    assert compensated.model_digest != plain.model_digest


def test_a_training_that_changes_nothing_counts(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    settings = app_run("constant", save_model=str(file))
    outcome, _ = run(settings)
    assert outcome.updates == {"accepted": settings.clients * settings.rounds, "duplicate": 0, "rejected": 0}
    assert {tuple(tensor.flatten().tolist()) for tensor in load_file(file).values()} == {(1.0, 1.0), (1.0,)}
