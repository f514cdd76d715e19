"""`ModelSync`, which a loop of the test drives, over real sockets: dtypes, buffers, losses and ends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import unstale
from support.trained import Net, joined, served
from unstale.trainers.batches import examples_in

pytestmark = pytest.mark.network


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, momentum=0.5)


def sync_of(client: Any, **arguments: Any) -> unstale.ModelSync:
    return unstale.ModelSync(client, arguments.get("params", "trainable"), arguments.get("sync_every", 1))


@torch.no_grad()
def add(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.add_(value)


def test_a_model_in_bfloat16_sends_its_change_without_the_rounding_of_what_it_loaded(tmp_path: Path) -> None:
    """A third is 0.333984375 in bfloat16, and half of it more 0.833984375, which rounds to 0.8359375."""
    third = torch.tensor(1 / 3)

    class Third(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(third.clone().view(1))

    model = Third().bfloat16()
    with served(tmp_path, 1, Third) as server:
        with joined(server) as client:
            sync = sync_of(client)
            assert sync.start(model)
            add(model, 0.5)
            sync.record(1.0, 1)
            assert not sync.step()
        run = server.wait()
    assert run.model["w"].item() == pytest.approx(1 / 3 + 0.8359375 - 0.333984375, abs=1e-7)


def test_running_means_are_exchanged_with_the_parameters(tmp_path: Path) -> None:
    model = Normed()
    with served(tmp_path, 1, Normed) as server:
        with joined(server) as client:
            sync = sync_of(client)
            sync.start(model)
            add(model, 0.25)
            model.norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))  # means 2 and 4
            sync.record(1.0, 2)
            sync.step()
        run = server.wait()
    assert run.model["norm.running_mean"].tolist() == [1.0, 2.0]
    assert run.model["norm.weight"].tolist() == [1.25, 1.25]


def test_a_loss_that_is_not_finite_is_one_sentence(tmp_path: Path) -> None:
    with served(tmp_path, 1) as server, joined(server) as client:
        sync = sync_of(client)
        sync.start(Net())
        sync.record(torch.tensor(float("nan")), 1)
        with pytest.raises(unstale.UserError, match="mean loss of the last 1 examples is nan, expected"):
            sync.step()


def test_steps_without_a_loss_are_one_sentence(tmp_path: Path) -> None:
    with served(tmp_path, 1) as server, joined(server) as client:
        sync = sync_of(client)
        sync.start(Net())
        with pytest.raises(unstale.UserError, match="no batch has a loss, expected a training_step that returns it"):
            sync.step()


def test_a_training_that_ends_without_a_step_gives_its_task_back(tmp_path: Path) -> None:
    with served(tmp_path, 1) as server, joined(server) as client:
        sync = sync_of(client)
        sync.start(Net())
        sync.finish()
        assert not client._task.is_open


def test_a_run_that_has_ended_has_no_task(tmp_path: Path) -> None:
    model = Net()
    with served(tmp_path, 1) as server, joined(server) as client:
        sync = sync_of(client)
        sync.start(model)
        add(model, 1.0)
        sync.record(1.0, 1)
        assert not sync.step()
        assert not sync.start(model) and not sync.step()
        sync.finish()


def test_a_trainer_of_several_processes_is_one_sentence() -> None:
    class Trainer:
        args = SimpleNamespace(world_size=2)

    Trainer.__module__ = "transformers.trainer"
    client = unstale.join("tcp://127.0.0.1:1", client_id=0)
    with pytest.raises(unstale.UserError, match="the trainer has 2 processes, expected 1"):
        unstale.patch(Trainer(), client)


def test_the_examples_of_a_batch_are_its_first_dimension() -> None:
    rows_N3 = torch.zeros(5, 3)
    batches = (rows_N3, [rows_N3, torch.zeros(5)], {"scale": torch.tensor(2.0), "x": rows_N3}, torch.tensor(1.0))
    assert [examples_in(batch) for batch in batches] == [5, 5, 5, 1]
