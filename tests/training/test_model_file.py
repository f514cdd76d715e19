"""The model as a file: another program reads the trained model."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from unstale import flat
from unstale.config import Settings
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.simulator.assemble import simulation
from unstale.training import model_file


def test_each_parameter_is_written_under_its_own_name_and_shape(tmp_path: Path) -> None:
    model = FlatModel(torch.nn.Linear(2, 1))
    model.release()
    path = tmp_path / "model.safetensors"
    model_file.save(path, model, torch.tensor([1.0, 2.0, 3.0]), {"version": "7"})
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("weight").tolist() == [[1.0, 2.0]]
        assert file.get_tensor("bias").tolist() == [3.0]
        assert file.metadata() == {"version": "7"}


def test_a_run_leaves_its_last_version(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    settings = Settings(model={"name": "logreg"}, clients=4, rounds=3, save_model=str(path), trigger={"k": 2})
    run = simulation(settings, on_progress=lambda _: None)
    outcome = run.run()
    assert list(tmp_path.iterdir()) == []
    run.save()
    with safe_open(path, framework="pt") as file:
        written_d = torch.cat([file.get_tensor(name).flatten() for name in ("1.weight", "1.bias")])
        assert file.metadata() == {"model": "logreg", "version": "3", "digest": outcome.model_digest}
    assert flat.digest(written_d) == outcome.model_digest


@pytest.mark.parametrize("path", ["", "missing/model.safetensors", "/dev/null"])
def test_an_invalid_path_is_refused_before_the_run(path: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^save_model is .*, expected the name of a file in a folder that exists$"):
        model_file.check_writable(tmp_path / path)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/model.safetensors", "no such file or directory"),  # a folder that takes no files, not even root's
        ("m" * 256, "file name too long"),
        ("m\0", "embedded null byte"),
    ],
)
def test_an_unwritable_file_is_refused_before_the_run(path: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        model_file.check_writable(tmp_path / path)
    assert str(raised.value) == (
        f"save_model {str(tmp_path / path)!r} cannot be written ({why}); name a file where you may write"
    )


def test_the_check_leaves_everything_as_it_was(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    for path in (there, tmp_path / "not_there"):
        model_file.check_writable(path)
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_text() == "mine"


def test_a_model_that_cannot_be_written_whole_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("the one before")

    def half(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(UserError, match=r"cannot be written \(no space left on device\)"):
        model_file.save(path, FlatModel(torch.nn.Linear(2, 1)), torch.zeros(3), {})
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "the one before"


def test_a_link_still_points_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "model", tmp_path / "link"
    link.symlink_to(target)
    model_file.save(link, FlatModel(torch.nn.Linear(2, 1)), torch.zeros(3), {})
    assert link.is_symlink()
    assert target.is_file()


def test_float_buffers_are_written_beside_the_parameters_and_torch_loads_them_all(tmp_path: Path) -> None:
    model = FlatModel(torch.nn.BatchNorm1d(1))
    path = tmp_path / "model.safetensors"
    model_file.save(path, model, torch.tensor([1.0, 2.0]), {}, buffers_b=torch.tensor([3.0, 4.0]))
    read = load_file(path)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        "weight": [1.0],
        "bias": [2.0],
        "running_mean": [3.0],
        "running_var": [4.0],
    }
    module = torch.nn.BatchNorm1d(1)
    module.load_state_dict(read)
    assert module.running_var.item() == 4
