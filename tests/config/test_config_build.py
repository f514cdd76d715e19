"""Parts made from the configuration, and their errors before anything starts."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unstale.config import Settings, load, workspace
from unstale.config import app as app_module
from unstale.config.build import check, coordinator_settings, evaluation, learning_rate, policy, run_components, staging
from unstale.config.workspace import Workspace, make_workspace, training_context
from unstale.coordinator.triggers import TRIGGERS
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.learner.learner import Learner
from unstale.learner.versions import Version
from unstale.policies import describe, names
from unstale.policies.policy import Policy
from unstale.seeds import Stream, stream
from unstale.training.partition import PARTITIONS
from unstale.training.partition import create as create_partition
from unstale.training.registry import create as create_training
from unstale.training.schedule import SCHEDULES

CPU = torch.device("cpu")


def from_variables(**values: str) -> Settings:
    return load(variables={f"UNSTALE_{name.upper()}": value for name, value in values.items()})


def policy_of(settings: Settings) -> Policy[Any]:
    """The policy for a model of three parameters."""
    return policy(settings, 3, CPU, coordinator_settings(settings))


def learner_of(settings: Settings, model: FlatModel) -> Learner:
    workspace = replace(make_workspace(settings), model=model)
    return run_components(settings, lambda *_, **__: None, workspace=workspace).learner


def test_the_defaults_can_be_made() -> None:
    check(Settings())


def needs_nothing(name: str) -> bool:
    """Whether every setting of a policy has a default."""
    return not any(setting.required for setting in describe(name).settings)


@pytest.mark.parametrize("name", [name for name in names() if needs_nothing(name)])
def test_every_policy_can_be_chosen_by_its_name_and_the_training_that_it_needs(name: str) -> None:
    check(from_variables(policy__name=name, training__name=describe(name).training or "sgd"))


@pytest.mark.parametrize("name", ["sgd", "gradient", "fedprox", "moon"])
def test_every_training_that_needs_no_policy_of_its_own_can_be_chosen_by_its_name_alone(name: str) -> None:
    assert create_training(from_variables(training__name=name).training).name == name


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_can_be_chosen_by_its_name_alone(name: str) -> None:
    settings = from_variables(partition__name=name)
    check(settings)
    assert type(create_partition(settings.partition)) is PARTITIONS[name]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_chosen_by_its_name_alone(name: str) -> None:
    settings = from_variables(training__schedule__name=name, training__learning_rate="0.25")
    check(settings)
    assert learning_rate(settings.training, settings.rounds)(0) == 0.25


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_gsgm_blocks_where_clients_wait_for_the_round_that_takes_their_update(trigger: str) -> None:
    given = {"trigger__wait_s": "1"} if trigger == "deadline" else {}
    settings = from_variables(policy__name="gsgm", trigger__name=trigger, **given)
    resolved = coordinator_settings(settings)
    assert resolved.once_a_cycle == (trigger in ("async", "k-async"))
    # A row at a time where a round leaves parked updates behind.
    rows = staging(resolved, 3, CPU)
    handle, (row_D, *_) = rows.row()
    rows.discard(handle)
    assert row_D.shape == (3,)
    assert rows._rows_per_block == (1 if resolved.once_a_cycle else resolved.round_size_max)


@pytest.mark.parametrize("name", [name for name in TRIGGERS if name != "deadline"])
def test_every_trigger_but_the_one_that_needs_a_time_can_be_chosen_by_its_name_alone(name: str) -> None:
    resolved = coordinator_settings(from_variables(trigger__name=name))
    assert resolved.trigger.name == name
    assert resolved.trigger_part.k == (None if name in ("sync", "async") else 5)


@pytest.mark.parametrize("name", ["k-async", "k-sync", "buffered"])
def test_the_default_k_is_at_most_the_number_of_clients(name: str) -> None:
    assert coordinator_settings(from_variables(trigger__name=name, clients="4")).trigger.k == 4
    assert coordinator_settings(from_variables(trigger__name=name, clients="6")).trigger.k == 5


def test_the_deadline_trigger_needs_its_time() -> None:
    resolved = coordinator_settings(from_variables(trigger__name="deadline", trigger__wait_s="2.5"))
    assert (resolved.trigger_part.wait_s, resolved.trigger_part.k) == (2.5, None)


def test_epochs_take_the_place_of_steps() -> None:
    made: Any = create_training(from_variables(training__epochs="3").training)
    assert (made.epochs, made.steps) == (3, None)


def test_the_gradient_mode_takes_the_batch_size() -> None:
    made: Any = create_training(from_variables(training__name="gradient", training__batch_size="17").training)
    assert (made.kind, made.batch_size) == ("gradient", 17)


def test_the_servers_rate_is_its_multiplier_times_the_clients_rate() -> None:
    # eta = eta_g * eta_l = 0.5 * 0.25 = 0.125
    settings = from_variables(policy__server_multiplier="0.5", training__learning_rate="0.25")
    made = learner_of(settings, FlatModel(torch.nn.Linear(2, 1)))
    assert (made.learning_rate, made.rate) == (0.25, 0.125)


def test_the_schedule_is_of_this_run() -> None:
    # inverse: eta_0 / (1 + t / P) = 0.5 / (1 + 4 / 2); a cosine ends with the last round: half way it is half of eta_0.
    inverse = from_variables(
        training__learning_rate="0.5", training__schedule__name="inverse", training__schedule__period="2"
    )
    assert learning_rate(inverse.training, inverse.rounds)(4) == pytest.approx(0.5 / 3)
    cosine = from_variables(training__learning_rate="0.5", training__schedule__name="cosine", rounds="40")
    assert learning_rate(cosine.training, cosine.rounds)(20) == pytest.approx(0.25)


def test_a_training_receives_its_settings() -> None:
    made: Any = create_training(
        from_variables(training__name="moon", training__mu="3", training__temperature="0.25").training
    )
    assert (made.mu, made.temperature, made.steps) == (3.0, 0.25, 5)


def test_a_policy_with_an_optimiser_still_is_of_the_run() -> None:
    settings = from_variables(policy__name="scaffold", policy__optimiser__name="adam", training__name="scaffold")
    made = policy_of(settings)
    assert (made.dimension, made.clients, made.sends_extra) == (3, 20, True)
    assert made.extra_d is not None


def test_a_learner_is_made_with_the_models_buffers_and_what_the_policy_sends() -> None:
    settings = from_variables(policy__name="scaffold", training__name="scaffold")
    made = learner_of(settings, FlatModel(torch.nn.BatchNorm1d(3)))
    # weight and bias, running mean and variance, and a second vector for the former
    assert made.row_numbers == 6 + 6 + 6


def test_the_settings_of_the_policy_reach_it() -> None:
    made = policy_of(from_variables(policy__name="dynsgd", policy__settings__normalise="false"))
    assert made.settings.normalise is False
    assert (made.dimension, made.clients) == (3, 20)


def test_code_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "code_in_the_current_folder"
    (tmp_path / f"{code}.py").write_text("from support.factories import line, planes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    made = make_workspace(
        from_variables(model__name=f"{code}:line", data__name=f"{code}:planes", objective__name="regression")
    )
    assert made.model.dimension == 6  # two outputs for two inputs, and biases


WRONG = {
    "unknown model 'logrec'; did you mean 'logreg'?": {"model__name": "logrec"},
    "unknown data set 'digit'; did you mean 'digits'?": {"data__name": "digit"},
    "unknown data set 'mnis'; did you mean 'mnist'?": {"data__name": "mnis"},
    "data set 'npz' needs a path to a file with x_train, y_train, x_test and y_test; name it with data.path": {
        "data__name": "npz"
    },
    "data set 'digits' is built in and reads no file, got path 'x.npz'; did you mean 'npz'?": {"data__path": "x.npz"},
    "data set 'digits' has no columns, got column 'writer'; only 'npz' has": {"data__column": "writer"},
    "model.norm is 'batch', but model 'lenet_28' leaves no choice; expected resnet8 or resnet18": {
        "model__name": "lenet_28",
        "model__norm": "batch",
    },
    "model 'no_such:made' cannot be imported (No module named 'no_such'); expected package.module:name, in the "
    "current folder or one on PYTHONPATH": {"model__name": "no_such:made"},
    "unknown partition 'dirichlett'; did you mean 'dirichlet'?": {"partition__name": "dirichlett"},
    "partition 'iid' takes no partition.alpha, got 0.5; leave it out": {
        "partition__name": "iid",
        "partition__alpha": "0.5",
    },
    "partition.smallest is 60, expected at most partition.largest, 5": {
        "partition__name": "label-count",
        "partition__smallest": "60",
        "partition__largest": "5",
    },
    "unknown training 'sdg'; did you mean 'sgd'?": {"training__name": "sdg"},
    "training 'sgd' takes no training.mu, got 0.1; leave it out": {"training__mu": "0.1"},
    "training 'gradient' takes no training.momentum, got 0.9; leave it out": {
        "training__name": "gradient",
        "training__momentum": "0.9",
    },
    "schedule 'constant' takes no training.schedule.final, got 0.1; leave it out": {"training__schedule__final": "0.1"},
    "schedule 'inverse' takes no training.schedule.factor, got 0.5; leave it out": {
        "training__schedule__name": "inverse",
        "training__schedule__factor": "0.5",
    },
    "policy.clip_norm is 2 with policy 'scaffold', whose second vectors belong to the updates as they came; leave it "
    "out": {"policy__name": "scaffold", "policy__clip_norm": "2", "training__name": "scaffold"},
    "policy.optimiser.name is none, but policy.optimiser has other settings, expected momentum, adam or yogi "
    "with them": {"policy__optimiser__beta1": "0.5"},
    "policy.name is 'moon', whose clients train with training.name 'moon', got 'sgd'; add --training moon": {
        "policy__name": "moon"
    },
    "policy.name is 'scaffold', whose clients train with training.name 'scaffold', got 'moon'; "
    "add --training scaffold": {"policy__name": "scaffold", "training__name": "moon"},
    "training.name is 'scaffold', which trains with what policy 'scaffold' sends, got policy.name 'fedavg'": {
        "training__name": "scaffold",
        "policy__name": "fedavg",
    },
    "setting 'probabilities' of policy 'fedavg-is' is missing, expected a number or a list, each a number": {
        "policy__name": "fedavg-is"
    },
    "unknown setting 'allocate' of policy 'dynsgd'; expected one of normalise": {"policy__settings": "{allocate: 3}"},
    "unknown policy 'fedbuf'; did you mean 'fedbuff'?": {"policy__name": "fedbuf"},
    "unknown setting 'normalize' of policy 'dynsgd'; did you mean 'normalise'?": {
        "policy__name": "dynsgd",
        "policy__settings": "{normalize: true}",
    },
    "unknown setting 'clients' of policy 'dynsgd'; expected one of normalise": {"policy__settings": "{clients: 3}"},
    "unknown trigger 'kasync'; did you mean 'k-async'?": {"trigger__name": "kasync"},
    "trigger.k is 21 with 20 clients, expected 1 to 20": {"trigger__k": "21"},
    "trigger.k is 5 with 4 clients, expected 1 to 4": {"trigger__k": "5", "clients": "4"},
    "trigger 'sync' takes no trigger.k, got 7; leave it out": {"trigger__name": "sync", "trigger__k": "7"},
    "trigger 'k-async' needs trigger.k, and none was given": {"trigger__k": "null"},
    "trigger 'deadline' needs trigger.wait_s, and none was given": {"trigger__name": "deadline"},
    "unknown selector 'al'; did you mean 'all'?": {"selector__name": "al"},
    "selector 'random' needs selector.size, and none was given": {"selector__name": "random"},
    "min_clients is 21 with 20 clients, expected 1 to 20": {"min_clients": "21"},
}


@pytest.mark.parametrize(
    ("sentence", "values"),
    [
        (
            "policy.memory is 'pinned' with device cpu, expected auto, host or mapped without CUDA",
            {"policy__memory": "pinned"},
        ),
        (
            "policy.memory_folder is '/no/such/folder', expected a folder that exists",
            {"policy__memory": "mapped", "policy__memory_folder": "/no/such/folder"},
        ),
    ],
)
def test_missing_memory_is_reported_where_the_run_is(sentence: str, values: dict[str, str]) -> None:
    settings = from_variables(**values)
    check(settings)  # the run may be elsewhere
    with pytest.raises(UserError) as raised:
        policy_of(settings)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("sentence", "values"), WRONG.items())
def test_errors_that_only_a_part_detects_are_reported_before_anything_starts(
    sentence: str, values: dict[str, str]
) -> None:
    with pytest.raises(UserError) as raised:
        check(from_variables(**values))
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("trigger", "given", "weighting"),
    [("sync", {}, "samples"), ("k-async", {}, "uniform"), ("sync", {"weighting": "uniform"}, "uniform")],
)
def test_fedavg_weighs_by_samples_in_synchronous_rounds_by_default(
    trigger: str, given: dict[str, str], weighting: str
) -> None:
    settings = Settings(policy={"name": "fedavg", "settings": given}, trigger={"name": trigger})
    assert policy_of(settings).settings.weighting == weighting


def test_where_clients_are_groups_of_the_data_the_test_set_is_theirs(tmp_path: Path) -> None:
    # Writers 0 to 3 in the training part, of whom 0 and 1 become clients; 4 and 5 only in the test part.
    rng = stream(0, Stream.BATCHES)
    path = tmp_path / "writers.npz"
    np.savez(
        path,
        x_train=rng.random((40, 6)).astype(np.float32),
        y_train=np.arange(40) % 2,
        x_test=rng.random((12, 6)).astype(np.float32),
        y_test=np.arange(12) % 2,
        writer_train=np.arange(40) % 4,
        writer_test=np.array([0] * 3 + [1] * 2 + [3] * 4 + [4, 5, 5]),
    )
    settings = Settings(
        clients=2,
        model={"name": "logreg"},
        data={"name": "npz", "path": str(path), "column": "writer"},
        partition={"name": "natural"},
    )
    workspace = make_workspace(settings)
    model = workspace.model
    measured = evaluation(workspace)(Version(model_d=model.parameters_d, buffers_b=model.buffers_b))
    assert measured.num_examples == 3 + 2


@pytest.mark.parametrize("make", [make_workspace, training_context])
@pytest.mark.parametrize("app", [None, "support.apps:regression"])
def test_every_workspace_sets_the_precision_of_its_device_before_it_computes(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Settings], Workspace], app: str | None
) -> None:
    calls: list[object] = []

    def moved(*given: Any, **more: Any) -> FlatModel:
        calls.append("model")
        return FlatModel(*given, **more)

    monkeypatch.setattr(workspace, "set_precision", lambda *given: calls.append(given))
    for module in (workspace, app_module):
        monkeypatch.setattr(module, "FlatModel", moved)
    make(Settings(device="cpu", device_precision="tf32", app=app))
    assert calls == [(CPU, "tf32"), "model"]
