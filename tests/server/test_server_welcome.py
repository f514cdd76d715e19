"""The welcome of a server: every setting of every part is encoded in it."""

import pytest
import torch

from unstale.config import Settings
from unstale.config.workspace import make_workspace
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.server.welcome import welcome
from unstale.training.partition import PARTITIONS, Partition
from unstale.training.partition import create as create_partition
from unstale.training.registry import TRAININGS
from unstale.training.registry import create as create_training
from unstale_proto.messages import PartitionPlan, TrainingPlan, Welcome


def welcome_of(settings: Settings, *, extra: bool = False) -> Welcome:
    return welcome(settings, make_workspace(settings).model, extra=extra)


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_settings_of_a_partition_are_said_as_it_was_made(name: str) -> None:
    settings = Settings(partition={"name": name})
    made: Partition = create_partition(settings.partition)
    said = welcome_of(settings).partition
    assert said.name == name
    sent = {key: value for key, value in dict(made).items() if value is not None}
    assert said.settings == {**PartitionPlan.always, **sent}


@pytest.mark.parametrize("name", TRAININGS)
def test_the_settings_of_a_training_are_sent_as_it_was_made(name: str) -> None:
    settings = Settings(training={"name": name})
    said = welcome_of(settings).training
    sent = {key: value for key, value in dict(create_training(settings.training)).items() if value is not None}
    assert (said.name, said.settings) == (name, {**TrainingPlan.always, **sent})


def test_a_model_without_buffers_and_a_policy_that_sends_nothing_say_nothing_of_them() -> None:
    said = welcome_of(Settings(model={"name": "logreg"}))
    assert (said.buffers, said.extra) == (None, None)


def test_buffers_and_a_second_vector_are_announced_and_the_signature_is_of_both_kinds_of_tensor() -> None:
    plain = welcome_of(Settings(model={"name": "logreg"}))
    said = welcome_of(Settings(model={"name": "support.factories:with_buffers"}), extra=True)
    assert said.extra is True
    assert said.buffers is not None
    assert [(buffer.name, buffer.shape) for buffer in said.buffers] == [
        ("2.running_mean", (8,)),
        ("2.running_var", (8,)),
    ]
    assert said.signature != plain.signature


def test_each_run_has_an_id_of_its_own() -> None:
    settings = Settings(model={"name": "logreg"})
    assert welcome_of(settings).run_id != welcome_of(settings).run_id


def test_a_model_with_too_many_tensors_for_a_header_is_reported_in_one_sentence() -> None:
    many = FlatModel(torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(40_000)))
    with pytest.raises(UserError) as raised:
        welcome(Settings(), many, extra=False)
    assert str(raised.value) == (
        "model.name 'digits_cnn' has 80000 parameter tensors and 0 buffers, more than a welcome can name; "
        "choose a model with fewer"
    )
