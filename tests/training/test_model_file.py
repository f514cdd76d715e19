"""The model as a file: what another program reads is what was trained."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from unstale import flat
from unstale.config import Settings
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.simulator.assemble import simulation
from unstale.training import model_file


def test_each_parameter_is_written_under_its_own_name_and_shape(tmp_path: Path) -> None:
    model = FlatModel(torch.nn.Linear(2, 1))
    path = tmp_path / "model.safetensors"
    model_file.save(path, model, torch.tensor([1.0, 2.0, 3.0]), {"version": "7"})
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("weight").tolist() == [[1.0, 2.0]]
        assert file.get_tensor("bias").tolist() == [3.0]
        assert file.metadata() == {"version": "7"}


def test_a_run_leaves_its_last_version(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    settings = Settings(model={"name": "logreg"}, clients=4, rounds=3, save_model=str(path), trigger={"k": 2})
    outcome = simulation(settings, on_progress=lambda _: None).run()
    with safe_open(path, framework="pt") as file:
        written_d = torch.cat([file.get_tensor(name).flatten() for name in ("1.weight", "1.bias")])
        assert file.metadata() == {"model": "logreg", "version": "3", "digest": outcome.model_digest}
    assert flat.digest(written_d) == outcome.model_digest


def test_a_file_that_could_not_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "model.safetensors"):
        with pytest.raises(
            UserError, match=r"^save_model is .*, expected the name of a file in a folder that exists$"
        ):
            model_file.check_writable(path)
