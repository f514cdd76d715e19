"""From a welcome to the settings of a client: both sides build the same parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support import factories
from support.parts_of_runs import client_task
from support.running import small
from unstale.client import workspace
from unstale.client.workspace import durations_of, training_context_of
from unstale.config import Settings
from unstale.config import workspace as config_workspace
from unstale.config.data import ClientData, read_dataset
from unstale.config.settings import AttackSettings
from unstale.config.workspace import TrainingContext
from unstale.errors import UserError
from unstale.server.welcome import welcome
from unstale.training.attack import attackers
from unstale.training.partition import PARTITIONS
from unstale.training.partition import create as create_partition
from unstale.training.registry import TRAININGS
from unstale.training.registry import create as create_training
from unstale_proto import codec
from unstale_proto.messages import ObjectivePlan, Welcome

PARTITION: dict[str, Any] = {
    "alpha": 0.7,
    "min_examples": 9,
    "classes": 3,
    "smallest": 11,
    "largest": 61,
    "budget": 70,
    "pool": 150,
    "slow_share": 0.2,
    "slow_class": 3,
}
TRAINING: dict[str, Any] = {
    "batch_size": 64,
    "steps": 6,
    "momentum": 0.8,
    "weight_decay": 0.001,
    "mu": 0.3,
    "temperature": 0.7,
}


def server_welcome(settings: Settings) -> Welcome:
    """The welcome of a server with these settings, as received over the wire."""
    model = config_workspace.make_workspace(settings).model
    received = codec.decode(codec.encode(welcome(settings, model, extra=False)))
    assert isinstance(received, Welcome)
    return received


def test_frozen_parameters_are_compared_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_welcome(small()).frozen is None
    frozen = small(model={"name": "support.factories:with_frozen"})
    sent = server_welcome(frozen)
    own = Settings(device="cpu", model={"name": "support.factories:with_frozen"})
    assert training_context_of(sent, own).model.frozen_digest == sent.frozen
    older = sent.model_copy(update={"frozen": None})
    monkeypatch.setattr(factories, "with_frozen", lambda input_shape, classes: other_frozen(input_shape, classes))
    assert training_context_of(older, own).model.frozen_digest != sent.frozen
    with pytest.raises(UserError) as caught:
        training_context_of(sent, own)
    assert str(caught.value) == (
        "model 'support.factories:with_frozen' has other values, names or types of frozen parameters on this machine "
        "than on the server; load the same file on both sides, with the same version of PyTorch if a seed draws them"
    )


def other_frozen(input_shape: tuple[int, ...], classes: int, make: Any = factories.with_frozen) -> nn.Module:
    module: nn.Module = make(input_shape, classes)
    module[1].weight.data[0, 0] += 1e-6
    return module


def understood(monkeypatch: pytest.MonkeyPatch, server: Settings, own: Settings) -> Settings:
    """The settings from which a client builds its training context."""
    found: list[Settings] = []

    def workplace(settings: Settings, *, code: object, hosted: object) -> TrainingContext:
        found.append(settings)
        place = config_workspace.make_workspace(settings)
        parts = {key: getattr(place, key) for key in ("client_data", "test_data", "objective", "model", "device")}
        return TrainingContext(**parts, workload=None)  # type: ignore[arg-type]

    monkeypatch.setattr(workspace, "training_context", workplace)
    training_context_of(server_welcome(server), own)
    return found[0]


ELSEWHERE = Settings(
    seed=99,
    clients=3,
    model={"name": "digits_cnn", "projection_head": 16},
    data={"normalise": "raw"},
    partition={"name": "label-count", "classes": 9, "min_examples": 77},
    training={"name": "moon", "batch_size": 7, "mu": 9.0},
)
"""A client whose own configuration differs in every setting."""


@pytest.mark.parametrize("own", [Settings(), ELSEWHERE], ids=["defaults", "elsewhere"])
@pytest.mark.parametrize("given", [{}, PARTITION], ids=["by name alone", "all settings"])
@pytest.mark.parametrize("name", PARTITIONS)
def test_client_and_server_make_the_same_partition(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any], own: Settings
) -> None:
    taken = {key: value for key, value in given.items() if key in PARTITIONS[name].model_fields}
    server = Settings(seed=4, clients=5, model={"name": "logreg"}, partition={"name": name, **taken})
    client = understood(monkeypatch, server, own)
    assert create_partition(client.partition) == create_partition(server.partition)
    assert type(create_partition(client.partition)) is PARTITIONS[name]
    assert (client.seed, client.clients) == (4, 5)


@pytest.mark.parametrize("own", [Settings(), ELSEWHERE], ids=["defaults", "elsewhere"])
@pytest.mark.parametrize(
    "given", [{}, TRAINING, {"steps": None, "epochs": 3}], ids=["by name alone", "all settings", "epochs"]
)
@pytest.mark.parametrize("name", TRAININGS)
def test_client_and_server_make_the_same_training(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any], own: Settings
) -> None:
    taken = {key: value for key, value in given.items() if key in TRAININGS[name].model_fields}
    server = Settings(model={"name": "logreg"}, training={"name": name, **taken})
    client = understood(monkeypatch, server, own)
    assert create_training(client.training) == create_training(server.training)
    assert type(create_training(client.training)) is TRAININGS[name]


@pytest.mark.parametrize("own", [Settings(), ELSEWHERE], ids=["defaults", "elsewhere"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "digits_cnn"}},
        {"model": {"name": "digits_cnn", "projection_head": 8}},
        {"model": {"name": "logreg"}, "data": {"normalise": "unit"}},
    ],
)
def test_client_and_server_make_the_same_model_from_the_same_data(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], own: Settings
) -> None:
    server = Settings(seed=7, **changes)
    client = understood(monkeypatch, server, own)
    assert client.model == server.model
    assert (client.data.name, client.data.normalise, client.data.column) == (
        server.data.name,
        server.data.normalise,
        server.data.column,
    )


def test_the_data_folder_and_the_device_are_the_clients_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Settings(device="cpu", threads=2, data={"cache": "/data", "download": True})
    client = understood(monkeypatch, Settings(device="auto", data={"cache": "/other"}), own)
    assert (client.device, client.threads) == ("cpu", 2)
    assert (client.data.cache, client.data.download) == ("/data", True)


CODE = "support.factories:with_dropout"


def test_code_that_only_the_server_names_is_not_imported() -> None:
    received = server_welcome(Settings(clients=2, model={"name": CODE}))
    with pytest.raises(UserError) as raised:
        training_context_of(received, Settings(device="cpu"))
    assert str(raised.value) == (
        f"model {CODE!r} is code, which is not imported because another side names it; "
        "name it in this side's own configuration too, or choose a model that unstale has"
    )
    with pytest.raises(UserError, match="is not imported because another side names it"):
        training_context_of(received, Settings(device="cpu", model={"name": "support.factories:with_buffers"}))


def test_code_that_the_client_names_too_is_imported() -> None:
    received = server_welcome(Settings(clients=2, model={"name": CODE}, partition={"name": "iid"}))
    made = training_context_of(received, Settings(device="cpu", model={"name": CODE}))
    assert made.model.dimension == 650


def test_data_made_by_code_that_only_the_server_names_is_not_imported() -> None:
    received = server_welcome(Settings(model={"name": "logreg"})).model_copy(update={"data": "support.factories:data"})
    with pytest.raises(UserError) as raised:
        training_context_of(received, Settings(device="cpu"))
    assert "support.factories:data" in str(raised.value)
    assert "own configuration" in str(raised.value)


def test_a_model_with_another_signature_gets_a_one_sentence_error() -> None:
    received = server_welcome(Settings(clients=2, model={"name": "logreg"}, partition={"name": "iid"}))
    with pytest.raises(UserError) as raised:
        training_context_of(received.model_copy(update={"signature": "0" * 64}), Settings(device="cpu"))
    assert str(raised.value) == (
        "model 'logreg' has 650 parameters on this machine and another signature than the server's; "
        "use the same data set and the same version of unstale on both sides"
    )


def test_other_labels_than_the_servers_get_a_one_sentence_error() -> None:
    settings = Settings(clients=4)
    received = server_welcome(settings)
    assert received.data_plan is not None
    for labels, fits in ((read_dataset(settings.data).labels_digest, True), ("0" * 64, False)):
        plan = received.data_plan.model_copy(update={"labels": labels})
        changed = received.model_copy(update={"data_plan": plan})
        if fits:
            training_context_of(changed, Settings())
            continue
        with pytest.raises(UserError, match=r"^data set 'digits' has other training labels on this machine"):
            training_context_of(changed, Settings())


def test_a_server_setting_out_of_bounds_gets_a_one_sentence_error() -> None:
    received = server_welcome(Settings(clients=4))
    assert received.model_plan is not None
    greedy = received.model_copy(
        update={"model_plan": received.model_plan.model_copy(update={"projection_head": 2**53 - 1})}
    )
    with pytest.raises(UserError, match=r"^the server wants model\.projection_head 9007199254740991, which is out"):
        training_context_of(greedy, Settings())


def test_a_path_of_this_machine_requires_data_from_a_path(tmp_path) -> None:
    # A server with a built-in data set needs no file.
    training_context_of(server_welcome(Settings(clients=4)), Settings(client={"data_path": str(tmp_path / "mine.npz")}))


def test_a_task_takes_the_time_of_the_devices_in_the_clients_own_scenario(tmp_path: Path) -> None:
    # 3 * (2 + 0.5 * 4 steps) s; twice that with the scenario's time scale; nothing for clients in no group.
    scenario = tmp_path / "slow.yaml"
    scenario.write_text("groups: [{name: slow, clients: [4, 5], device: {task: 2.0, step_s: 0.5, factor: 3}}]\n")
    own = Settings(clients=1, scenario={"name": str(scenario), "time_scale": 2.0})
    duration_s = durations_of(server_welcome(Settings(clients=6)), own)
    assert [duration_s(client_id, 0, 4) for client_id in (3, 4, 5)] == [0.0, 24.0, 24.0]


def test_slow_devices_may_depend_on_the_data_of_the_servers_run(tmp_path: Path) -> None:
    scenario = tmp_path / "fives.yaml"
    scenario.write_text("groups: [{name: fives, clients: {holding: 5, top: 2}, device: {task: 1.0}}]\n")
    server = Settings(clients=6, seed=4, partition={"name": "dirichlet", "alpha": 0.1})
    own = Settings(clients=3, partition={"name": "iid"}, scenario={"name": str(scenario)})
    duration_s = durations_of(server_welcome(server), own)
    dataset = read_dataset(server.data)
    fives = [int((dataset.train.labels_N[share] == 5).sum()) for share in ClientData.of(server, dataset).train()]
    most = sorted(range(6), key=lambda client_id: fives[client_id])[-2:]
    assert {client_id for client_id in range(6) if duration_s(client_id, 0, 1)} == set(most)


def test_a_scenario_with_unknown_clients_gets_a_one_sentence_error(tmp_path: Path) -> None:
    scenario = tmp_path / "many.yaml"
    scenario.write_text("groups: [{name: many, clients: [70], device: {task: 1.0}}]\n")
    own = Settings(clients=100, scenario={"name": str(scenario)})
    with pytest.raises(UserError, match=r"many.*70"):
        durations_of(server_welcome(Settings(clients=6)), own)


REGRESSION: dict[str, Any] = {
    "model": {"name": "support.factories:line"},
    "data": {"name": "support.factories:planes"},
    "partition": {"name": "iid"},
}


def test_a_client_trains_for_the_objective_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Settings(**REGRESSION, objective={"name": "regression"})
    own = Settings(**REGRESSION, objective={"name": "segmentation", "settings": {"ignore_index": 1}})
    assert understood(monkeypatch, server, own).objective == server.objective
    assert understood(monkeypatch, Settings(model={"name": "logreg"}), own).objective == Settings().objective


def test_a_server_names_no_objective_of_code_that_the_client_does_not_name() -> None:
    own = Settings(**REGRESSION)
    received = server_welcome(Settings(**REGRESSION, objective={"name": "regression"})).model_copy(
        update={"objective": ObjectivePlan(name="os:system", command="ls")}
    )
    with pytest.raises(UserError, match="objective 'os:system' is code, which only this machine's own configuration"):
        training_context_of(received, own)


def test_a_client_computes_the_attackers_from_the_seed_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    received = server_welcome(small(clients=4, seed=5))
    attack = AttackSettings(name="scale", clients=2)
    own = small(clients=1, attack=attack, client={"first": 0, "count": 3})
    trainer = training_context_of(received, own).trainer
    chosen = attackers(5, 4, 2)
    base_d = torch.zeros(sum(torch.Size(spec.shape).numel() for spec in received.tensors))
    honest = training_context_of(received, small(clients=1)).trainer
    for client_id in range(4):
        sent, made = (one.train(client_task(client_id, 0, base_d, 0.1)).vector_d for one in (trainer, honest))
        assert torch.equal(sent, made * 1000 if client_id in chosen else made)
    here = len(chosen & {0, 1, 2})
    listed = ", ".join(map(str, sorted(chosen)))
    assert caplog.messages == [
        f"attack, for experiments: scale by 1000 (clients {listed}); {here} of them in this process"
    ]
