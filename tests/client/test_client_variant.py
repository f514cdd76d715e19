"""A client of a run whose data changes: it trains on the data of its task's version, and on the server's files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.running import small
from support.variant import small_and_large
from unstale.client.worker import Trained, Worker
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.config.data import read_dataset
from unstale.config.workspace import make_workspace, training_context
from unstale.errors import UserError
from unstale.flat import to_bytes
from unstale.server.welcome import welcome
from unstale_client.jobs import Job, ReceivedModel
from unstale_proto import codec
from unstale_proto.messages import Task, VariantPlan, Welcome


def settings_of(data: dict[str, Any]) -> Settings:
    return small(clients=3, data=data)


def server_welcome(settings: Settings) -> Welcome:
    server = make_workspace(settings)
    labels = server.dataset.labels_digest
    received = codec.decode(codec.encode(welcome(settings, server.model, extra=False, labels=labels)))
    assert isinstance(received, Welcome)
    return received


def test_a_task_is_trained_on_the_data_of_its_base_version(tmp_path: Path) -> None:
    settings = settings_of(small_and_large(tmp_path))
    received = server_welcome(settings)
    context = training_context(settings)
    base_d = context.model.parameters_d.clone()
    worker = Worker(lambda welcome: training_context_of(welcome, settings), post=lambda result: None)
    for number, version in enumerate((40, 7)):
        task = Task(
            task_id=number + 1,
            number=number,
            version=version,
            learning_rate=0.5,
            signature=received.signature,
            payload_bytes=4 * len(base_d),
        )
        model = ReceivedModel([to_bytes(base_d)])
        made = worker._work(Job(client_id=1, welcome=received, task=task, model=model, is_wanted=lambda: True))
        assert isinstance(made, Trained)
        expected = context.trainer.train(1, number, base_d, 0.5, version=version)
        assert torch.equal(made.local.vector_d, expected.vector_d)
        other = context.trainer.train(1, number, base_d, 0.5, version=0)
        assert not torch.equal(made.local.vector_d, other.vector_d)


def test_a_client_with_another_second_file_gets_an_error(tmp_path: Path) -> None:
    received = server_welcome(settings_of(small_and_large(tmp_path)))
    with pytest.raises(UserError) as raised:
        training_context_of(received, settings_of(small_and_large(tmp_path, seed=3)))
    assert str(raised.value) == (
        "data set 'npz', or 'npz' of data.variant, has other training labels on this machine than on the server; use "
        "the same files, data.share and data.validation on both sides"
    )


def test_the_server_names_the_next_data_set_and_its_rate(tmp_path: Path) -> None:
    server = settings_of(small_and_large(tmp_path))
    own = server.data.variant.model_copy(update={"name": None, "rate": None})
    elsewhere = server.model_copy(update={"data": server.data.model_copy(update={"variant": own})})
    made = training_context_of(server_welcome(server), elsewhere)
    assert made.dataset.labels_digest == read_dataset(server.data).labels_digest


def test_a_client_with_changing_data_in_its_file_takes_part_in_a_run_with_constant_data(tmp_path: Path) -> None:
    own = settings_of(small_and_large(tmp_path))
    server = settings_of({"name": "npz", "path": own.data.path})
    assert training_context_of(server_welcome(server), own).dataset.later is None


def test_code_of_a_next_data_set_that_only_the_server_names_is_not_imported() -> None:
    received = server_welcome(settings_of({}))
    assert received.data_plan is not None
    plan = received.data_plan.model_copy(update={"variant": VariantPlan(name="support.factories:data", rate=1.0)})
    changed = received.model_copy(update={"data_plan": plan})
    with pytest.raises(UserError, match=r"'support\.factories:data' is code, which only this machine's own config"):
        training_context_of(changed, settings_of({}))


def test_a_data_set_that_only_the_server_names_is_not_downloaded(tmp_path: Path) -> None:
    received = server_welcome(settings_of({}))
    assert received.data_plan is not None
    plan = received.data_plan.model_copy(update={"variant": VariantPlan(name="svhn", rate=1.0)})
    changed = received.model_copy(update={"data_plan": plan})
    own = settings_of({"download": True, "cache": str(tmp_path)})
    with pytest.raises(UserError, match=r"data set 'svhn' is not in .*; get it with"):
        training_context_of(changed, own)
