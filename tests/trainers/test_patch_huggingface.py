"""`unstale.patch` of the Trainer of Hugging Face over real sockets; trainings without a server are oracles."""

from pathlib import Path
from typing import Any

import pytest
import torch

import unstale
from support.trained import BATCH, Net, Other, joined, rows, served

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]


def trainer_of(folder: Path, model: torch.nn.Module | None = None, **changes: Any) -> Any:
    arguments = {
        "max_steps": 6,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 0.125,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "max_grad_norm": 0.0,
        **changes,
    }
    return transformers.Trainer(
        model or Net(), transformers.TrainingArguments(str(folder / "trainer"), **arguments), train_dataset=rows()
    )


def federated(folder: Path, rounds: int, sync_every: int, **changes: Any) -> tuple[Any, unstale.Run]:
    """A trainer after its training in a run, and the run."""
    trainer = trainer_of(folder, **changes)
    with served(folder, rounds) as server:
        with joined(server) as client:
            unstale.patch(trainer, client, sync_every=sync_every)
            trainer.train()
        return trainer, server.wait()


def assert_same(model: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 2},
        {"bf16": True},
        {"optim": "adamw_torch", "lr_scheduler_type": "linear", "learning_rate": 0.01},
    ],
    ids=["sgd", "accumulated", "bfloat16", "adamw"],
)
def test_the_only_client_of_a_server_trains_as_the_trainer_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    trainer, run = federated(tmp_path, 6, 1, max_steps=6, **changes)
    alone = trainer_of(tmp_path, max_steps=6, **changes)
    alone.train()
    assert trainer.state.global_step == 6 and len(run.rounds) == 6
    assert_same(run.model, alone.model.state_dict())


def test_an_update_has_the_examples_and_the_mean_loss_of_its_steps(tmp_path: Path) -> None:
    changes = {"gradient_accumulation_steps": 2, "logging_steps": 2, "max_steps": 4, "lr_scheduler_type": "linear"}
    trainer, run = federated(tmp_path, 2, 2, **changes)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert run.updates.num_examples.tolist() == [4 * BATCH] * 2
    assert run.updates.loss_nats.tolist() == pytest.approx(losses, abs=1e-4)


def test_the_end_of_the_run_ends_the_training_of_several_epochs(tmp_path: Path) -> None:
    trainer, run = federated(tmp_path, 5, 2, max_steps=-1, num_train_epochs=1000)
    assert (trainer.state.global_step, len(run.rounds)) == (10, 5)


def test_a_training_that_ends_first_sends_its_last_steps(tmp_path: Path) -> None:
    _, run = federated(tmp_path, 2, 2, max_steps=3)
    assert run.updates.num_examples.tolist() == [2 * BATCH, BATCH]
    alone = trainer_of(tmp_path, max_steps=3)
    alone.train()
    assert_same(run.model, alone.model.state_dict())


def test_a_step_that_changes_nothing_is_declined(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.125)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: min(step, 1.0))
    with served(tmp_path, 3) as server, joined(server) as client:
        unstale.patch(trainer, client)
        trainer.train()
        run = server.wait()
    assert (trainer.state.global_step, len(run.rounds)) == (3, 3)
    assert run.updates.num_examples.tolist() == [BATCH, BATCH]  # the first round ends without an update


class Replaced(transformers.TrainerCallback):  # type: ignore[misc]
    """Replaces the parameters by hand after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 2:
            shift(objects["model"])


@torch.no_grad()
def shift(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.add_(0.25)


def moments(trainer: Any) -> list[torch.Tensor]:
    state = trainer.optimizer.state_dict()["state"]
    return [tensor for _, values in sorted(state.items()) for _, tensor in sorted(values.items())]


class ShiftedClient:
    """A client whose second task has the parameters that the first update made, shifted."""

    def __init__(self, client: Any) -> None:
        self._client, self._tasks = client, 0

    def __next__(self) -> Any:
        task = next(self._client)
        self._tasks += 1
        if self._tasks == 2:
            task.parameters = {name: value + value.dtype.type(0.25) for name, value in task.parameters.items()}
        return task


def test_the_moments_of_adamw_are_those_of_a_training_whose_parameters_were_replaced(tmp_path: Path) -> None:
    changes = {"optim": "adamw_torch", "max_steps": 4, "learning_rate": 0.01, "lr_scheduler_type": "cosine"}
    trainer, alone = trainer_of(tmp_path, **changes), trainer_of(tmp_path, **changes)
    with served(tmp_path, 2) as server, joined(server) as client:
        unstale.patch(trainer, ShiftedClient(client), sync_every=2)  # type: ignore[arg-type]
        trainer.train()
    alone.add_callback(Replaced())
    alone.train()
    assert len(moments(trainer)) == 3 * 4  # step and two moments of each tensor
    for mine, its in zip(moments(trainer), moments(alone), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-7)
    assert trainer.lr_scheduler.state_dict() == alone.lr_scheduler.state_dict()


def test_a_training_resumed_from_its_checkpoint_equals_one_that_never_ended(tmp_path: Path) -> None:
    changes = {"optim": "adamw_torch", "learning_rate": 0.01, "save_strategy": "steps", "save_steps": 1}
    with served(tmp_path, 1000) as server:  # rounds without a client end without an update
        for max_steps in (4, 6):  # the second trainer is a new one, and so is its client
            trainer = trainer_of(tmp_path, max_steps=max_steps, **changes)
            with joined(server, state_dir=tmp_path / "state") as client:
                unstale.patch(trainer, client)
                trainer.train(resume_from_checkpoint=max_steps == 6)
        server.stop()
        run = server.wait()
    alone = trainer_of(tmp_path / "alone", max_steps=6, **changes)
    alone.train()
    assert run.updates.num_examples.tolist() == [BATCH] * 6
    for mine, its in zip(moments(trainer), moments(alone), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-7)
    assert_same(run.model, alone.model.state_dict())


def test_a_server_with_another_model_is_one_sentence(tmp_path: Path) -> None:
    with served(tmp_path, 2, Other) as server, joined(server) as client:
        trainer = trainer_of(tmp_path)
        unstale.patch(trainer, client)
        with pytest.raises(unstale.UserError, match=r"exchanges 'last.weight' of shape \[2, 4\], expected \[1, 4\]"):
            trainer.train()


def test_parameters_that_the_server_lacks_are_one_sentence(tmp_path: Path) -> None:
    with served(tmp_path, 2, lambda: Net().first) as server, joined(server) as client:
        trainer = trainer_of(tmp_path)
        unstale.patch(trainer, client)
        with pytest.raises(unstale.UserError, match="exchanges 'weight', expected the 'trainable' parameters"):
            trainer.train()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"params": "adapter"}, "params is 'adapter', and the model has no adapter"),
        ({"params": "heads"}, "params is 'heads', expected 'adapter', 'trainable' or 'all'"),
        ({"sync_every": 0}, "sync_every is 0, expected a whole number from 1"),
    ],
)
def test_invalid_arguments_are_one_sentence(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    client = unstale.join("tcp://127.0.0.1:1", client_id=0)
    with pytest.raises(unstale.UserError, match=message):
        unstale.patch(trainer_of(tmp_path), client, **arguments)
    with pytest.raises(unstale.UserError, match=r"trainer is a Net, expected a transformers.Trainer"):
        unstale.patch(Net(), client)


def test_a_trainer_is_patched_once(tmp_path: Path) -> None:
    trainer, client = trainer_of(tmp_path), unstale.join("tcp://127.0.0.1:1", client_id=0)
    unstale.patch(trainer, client)
    with pytest.raises(unstale.UserError, match="patched already"):
        unstale.patch(trainer, client)
