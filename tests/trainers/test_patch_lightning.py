"""`unstale.patch` of the Trainer of Lightning, and of loops with Fabric, over real sockets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unstale
from support.trained import BATCH, Net, joined, rows, served

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
Module = pytest.importorskip("support.lightning_module").Module

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]


def loader() -> Any:
    return DataLoader(rows(), batch_size=BATCH)  # type: ignore[arg-type, var-annotated]


def trainer_of(**changes: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(accelerator="cpu", devices=1, **{"max_epochs": 1, **quiet, **changes})


def federated(folder: Path, rounds: int, sync_every: int, **changes: Any) -> tuple[Any, unstale.Run]:
    """A trainer after its training in a run, and the run."""
    trainer = trainer_of(**changes)
    with served(folder, rounds, Module) as server:
        with joined(server) as client:
            unstale.patch(trainer, client, sync_every=sync_every)
            trainer.fit(Module(), loader())
        return trainer, server.wait()


def alone(**changes: Any) -> dict[str, torch.Tensor]:
    module = Module()
    trainer_of(**changes).fit(module, loader())
    return module.state_dict()


def assert_same(model: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulate_grad_batches": 2, "max_epochs": 2}, {"precision": "bf16-mixed"}],
    ids=["adamw", "accumulated", "bfloat16"],
)
def test_the_only_client_of_a_server_trains_as_the_trainer_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    trainer, run = federated(tmp_path, 6, 1, **changes)
    assert trainer.global_step == 6 and len(run.rounds) == 6
    assert_same(run.model, alone(**changes))


def test_an_update_has_the_examples_and_the_mean_loss_of_its_batches(tmp_path: Path) -> None:
    _, run = federated(tmp_path, 1, 3, accumulate_grad_batches=2)
    model, losses = Module(), []
    trainer = trainer_of(accumulate_grad_batches=2)
    inner = model.training_step
    model.training_step = lambda *batch: losses.append((loss := inner(*batch)).item()) or loss  # type: ignore[func-returns-value]
    trainer.fit(model, loader())
    assert run.updates.num_examples.tolist() == [6 * BATCH]
    assert run.updates.loss_nats.tolist() == pytest.approx([sum(losses) / 6])


def test_the_end_of_the_run_ends_the_training_of_several_epochs(tmp_path: Path) -> None:
    trainer, run = federated(tmp_path, 5, 2, max_epochs=1000)
    assert (trainer.global_step, len(run.rounds)) == (10, 5)


def test_a_training_that_ends_first_sends_its_last_steps(tmp_path: Path) -> None:
    _, run = federated(tmp_path, 2, 4)
    assert run.updates.num_examples.tolist() == [4 * BATCH, 2 * BATCH]
    assert_same(run.model, alone())


def fitted(fabric: Any, sync: unstale.ModelSync | None, steps: int) -> dict[str, torch.Tensor]:
    """A loop with Fabric, with the exchange of parameters or without."""
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 0.01))
    if sync is not None:
        sync.start(model)
    batches = loader()
    for number in range(steps):
        batch = list(batches)[number % len(batches)]
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if sync is not None:
            sync.record(loss, len(batch["x"]))
            if not sync.step(0.01):
                break
    if sync is not None:
        sync.finish()
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_loop_with_fabric_trains_as_without_a_server(precision: Any, tmp_path: Path) -> None:
    def fabric() -> Any:
        return lightning.Fabric(accelerator="cpu", devices=1, precision=precision)

    with served(tmp_path, 3) as server:
        with joined(server) as client:
            mine = fabric()
            fitted(mine, unstale.patch(mine, client, sync_every=2), 100)
        run = server.wait()
    assert run.updates.num_examples.tolist() == [2 * BATCH] * 3
    assert_same(run.model, fitted(fabric(), None, 6))
