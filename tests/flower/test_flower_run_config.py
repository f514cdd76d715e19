"""The `run_config` of an app of Flower."""

import sys
import types
from pathlib import Path

import pytest

from unstale.errors import UserError
from unstale.flower.run_config import flattened, of_app


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in a folder below a pyproject.toml with a table of an app of Flower."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.config]\nlr = 0.5\nepochs = 1\nname = "a"\nnet.width = 3\n'
    )
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.other]\n")
    made = types.ModuleType("flower_app_of_test")
    made.__file__ = str(tmp_path / "inner" / "client_app.py")
    monkeypatch.setitem(sys.modules, "flower_app_of_test", made)
    return "flower_app_of_test"


def test_the_table_of_the_app_is_flattened_with_dots(module: str) -> None:
    assert of_app(module, None) == {"lr": 0.5, "epochs": 1, "name": "a", "net.width": 3}
    assert flattened({"a": {"b": {"c": 1}}, "d": True}) == {"a.b.c": 1, "d": True}


def test_overrides_have_the_form_of_flower(module: str) -> None:
    config = of_app(module, "lr=1 epochs = 2 name='two words' net.width=4")
    assert config == {"lr": 1.0, "epochs": 2, "name": "two words", "net.width": 4}
    assert type(config["lr"]) is float


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("lr", "flower.run_config is 'lr', expected pairs such as"),
        ("lr=x", "flower.run_config is 'lr=x', expected pairs such as"),
        ("epoch=2", "epoch"),
        ("epochs='two'", "flower.run_config: epochs is 'two', expected int as in pyproject.toml"),
    ],
)
def test_wrong_overrides_are_named(module: str, overrides: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        of_app(module, overrides)
    assert message in str(error.value)


def test_a_module_without_a_table_has_an_empty_one() -> None:
    assert of_app("json", None) == {}
