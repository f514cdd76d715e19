"""Adapters of PEFT over sockets: only their bytes travel, and a client that is killed resumes."""

import signal
import sqlite3
from pathlib import Path

import pytest
import torch
from torch import nn

import unstale
from support import examples, lora
from support.processes import START_S, Process, free_port
from support.proxy import Proxy
from support.trained import BATCH, Net, joined, rows, served
from unstale.trainers.exchanged import chosen

peft = pytest.importorskip("peft", reason="peft is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]


def adapted() -> nn.Module:
    """Its adapter has 2 * (3 + 4) numbers."""
    with torch.random.fork_rng():
        transformers.set_seed(0)
        model: nn.Module = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["first"]))
    return model


def test_an_adapter_is_the_parameters_of_the_active_adapter() -> None:
    model = adapted()
    lora_names = [f"base_model.model.first.lora_{matrix}.default.weight" for matrix in "AB"]
    assert list(chosen(model, "adapter")) == list(chosen(model, "trainable")) == lora_names
    model.base_model.model.last.bias.requires_grad_(True)  # type: ignore[union-attr]
    assert list(chosen(model, "adapter")) == lora_names
    assert len(chosen(model, "trainable")) == 3 and len(chosen(model, "all")) == 6


def test_only_the_bytes_of_the_adapter_travel(tmp_path: Path) -> None:
    model = adapted()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    arguments = transformers.TrainingArguments(
        str(tmp_path / "trainer"), max_steps=100, per_device_train_batch_size=BATCH, learning_rate=0.01,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows())
    with served(tmp_path, 3, adapted) as server, Proxy(server.address, lambda message, up: False) as proxy:
        with unstale.join(proxy.address, client_id=0, patience_s=30) as client:
            unstale.patch(trainer, client, params="adapter", sync_every=2)
            trainer.train()
        run, sizes = server.wait(), list(proxy.sizes)
    for is_up in (True, False):
        assert [payload for up, _, payload in sizes if up == is_up and payload] == [4 * 2 * (3 + 4)] * 3
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != ("lora_" in name)
    for name, tensor in run.model.items():
        torch.testing.assert_close(tensor, dict(model.named_parameters())[name].detach())


def test_a_client_without_the_adapters_of_the_server_is_told_the_first_name(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to="none", use_cpu=True, remove_unused_columns=False
    )
    trainer = transformers.Trainer(Net(), arguments, train_dataset=rows())
    with served(tmp_path, 3, adapted) as server, joined(server) as client:
        unstale.patch(trainer, client)
        with pytest.raises(unstale.UserError, match=r"exchanges 'base_model\S+lora_A.default.weight', expected the 't"):
            trainer.train()


@pytest.mark.slow
def test_a_client_that_is_killed_resumes_and_counts_once(tmp_path: Path) -> None:
    """Three processes of a client, two of which are killed while they train."""
    folder, run, rounds = examples.copied("lora", tmp_path / "lora"), tmp_path / "run", 40
    address = f"tcp://127.0.0.1:{free_port()}"
    command = ("server", *lora.SERVER, "--address", address, "--run", str(run), "--clients", "1")
    with Process(*command, "--rounds", str(rounds), folder=folder) as server:
        server.fact()
        for _ in range(2):
            with lora.client(folder, address, 0) as process:
                assert [lora.next_loss(process) > 0 for _ in range(5)] == [True] * 5
                process.send_signal(signal.SIGKILL)
        with lora.client(folder, address, 0) as process:
            assert process.stdout is not None
            output = process.stdout.read()
            assert process.wait(START_S) == 0
        assert server.end() == 0
    stored = sqlite3.connect(run / "run.db")
    losses = [loss for (loss,) in stored.execute("SELECT loss FROM updates JOIN tasks USING (task_id) ORDER BY number")]
    numbers = stored.execute("SELECT count(*), count(DISTINCT task_id), count(DISTINCT round) FROM updates").fetchall()
    conserved = stored.execute("SELECT received, aggregated, pending, rejected FROM conservation").fetchall()
    stored.close()
    assert numbers == [(rounds, rounds, rounds)] and conserved == [(rounds, rounds, 0, 0)]
    assert "'train_loss'" in output
    assert max(losses[-5:]) < min(losses[:5])
    assert sorted(path.name for path in (folder / "state-0").iterdir()) == ["lock", "starts"]
