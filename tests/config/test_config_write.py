"""The configuration as YAML: a written file loads to the same settings."""

from pathlib import Path

import pytest
import yaml

from unstale.config import Given, Settings, load
from unstale.config.keys import KEYS
from unstale.config.write import as_variables, as_yaml, commented, resolved, write_commented
from unstale.errors import UserError


def test_the_written_file_loads_to_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "unstale.yaml"
    write_commented(file, force=False)
    assert load(file) == Settings()


def test_an_app_goes_together_with_the_written_file(tmp_path: Path) -> None:
    file = tmp_path / "unstale.yaml"
    write_commented(file, force=False)
    settings = load(file, options={"app": Given(value="my_app:app", origin="--app")})
    assert (settings.app, settings.model.name, settings.data.name) == ("my_app:app", "app", "private")


def test_the_written_file_says_of_every_key_what_it_means_takes_and_counts_in() -> None:
    # Comments are wrapped: compare words, not lines.
    words = " ".join(commented().replace("#", " ").split())
    for key in KEYS.values():
        unit = f" Unit: {key.unit}." if key.unit else ""
        assert f"{key.description} Expected: {key.expected}.{unit} {key.name.rpartition('.')[2]}: " in words


def test_every_key_is_described_in_a_sentence() -> None:
    assert [key.name for key in KEYS.values() if not key.description.endswith(".")] == []


def test_every_key_that_counts_seconds_says_so() -> None:
    assert [key.name for key in KEYS.values() if key.name.endswith("_s") != (key.unit == "s")] == []


def test_a_file_that_exists_is_overwritten_only_when_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "unstale.yaml"
    file.write_text("mine")
    with pytest.raises(UserError) as raised:
        write_commented(file, force=False)
    assert str(raised.value) == f"{file} exists already; name another file, or add --force to overwrite it"
    assert file.read_text() == "mine"
    write_commented(file, force=True)
    assert file.read_text() == commented()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        write_commented(tmp_path / "nowhere" / "unstale.yaml", force=False)
    assert str(raised.value) == f"cannot write {tmp_path}/nowhere/unstale.yaml: no such file or directory"


def test_the_resolved_configuration_loads_to_the_same_settings(tmp_path: Path) -> None:
    settings = load(
        variables={
            "UNSTALE_POLICY__SETTINGS": "{alpha: 1e-9, 'odd name': [1, null, 'off']}",
            "UNSTALE_DATA__PATH": "données # 1.npz",
            "UNSTALE_SERVER__HTTP_ADDRESS": "null",
            "UNSTALE_PARTITION__ALPHA": "0.001",
        }
    )
    file = tmp_path / "resolved.yaml"
    file.write_text(resolved(settings), encoding="utf-8")
    assert load(file) == settings
    assert yaml.safe_load(resolved(settings)) == settings.model_dump()
    assert load(variables=as_variables(settings)) == settings


@pytest.mark.parametrize("value", ["word " * 40, list(range(60)), {f"key {index}": index for index in range(30)}])
def test_a_long_value_is_on_one_line(value: object) -> None:
    assert "\n" not in as_yaml(value)
    assert yaml.safe_load(as_yaml(value)) == value


def test_as_variables_the_keys_that_were_given_are_given_and_no_others() -> None:
    given = {"UNSTALE_ROUNDS": "200", "UNSTALE_SCENARIO__TIME_SCALE": "2.0"}
    assert as_variables(load(variables=given)) == given
    assert as_variables(Settings()) == {}
