"""The directory of a run: its owner, settings that may differ on resumption, and errors about missing files."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import recorded
from unstale.config import build
from unstale.config.keys import KEYS
from unstale.config.load import load
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal import checkpoints
from unstale.journal.database import Database
from unstale.journal.rundir import _ADMISSION_KEYS, _FREE_KEYS, _FREE_SECTIONS, RunDirectory, _values, decides
from unstale.journal.segments import HEADER, Segments
from unstale.journal.sequence_file import SequenceFile
from unstale.settings.learning import TriggerSettings
from unstale_client.disk import DamagedError
from unstale_client.partial_files import PartialFiles


def begun(path: Path, settings: Settings | None = None) -> RunDirectory:
    """A directory in which a server has been, closed."""
    directory = RunDirectory.open(path, settings or Settings())
    Database(directory.database).close()
    directory.close()
    return directory


def test_a_new_one_is_for_its_owner_alone_and_holds_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    directory = RunDirectory.open(path, Settings(seed=7))
    assert directory.is_new
    assert path.stat().st_mode & 0o777 == 0o700
    assert load(path / "config.yaml") == Settings(seed=7)
    assert directory.segments.is_dir()
    assert directory.checkpoints.is_dir()
    assert directory.database.stat().st_size == 0
    directory.close()


def test_files_of_a_run_are_for_their_owner_alone(tmp_path: Path) -> None:
    recorded.over_sockets(tmp_path / "run", rounds=4, run={"checkpoint_every": 2})
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    assert len(modes) >= 8
    assert {name: mode for name, mode in modes.items() if mode not in (0o600, 0o700)} == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begun(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(UserError, match=rf"^{path} belongs to user 12345, .* run `chown 0 {path}`"):
        RunDirectory.open(path, Settings())


def test_a_folder_that_every_user_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begun(path)
    path.chmod(0o777)
    with pytest.raises(UserError, match=rf"^every user may write to {path} \(mode 0777\).*`chmod 700 {path}`"):
        RunDirectory.open(path, Settings())
    path.chmod(0o755)  # its owner decides who may read it
    RunDirectory.open(path, Settings()).close()
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_its_group_may_write_to_is_taken_from_the_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    begun(path)
    path.chmod(0o770)
    RunDirectory.open(path, Settings()).close()
    assert path.stat().st_mode & 0o777 == 0o750
    assert caplog.messages == [f"{path}: its group may not write to it any more (mode was 0770)"]


@pytest.mark.parametrize(
    "name", ["lock", "run.db", "run.db-wal", "run.db-newest", "config.yaml", ".config.yaml.part", "segments"]
)
def test_a_symbolic_link_in_the_place_of_a_file_is_refused_and_not_followed(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / "run", tmp_path / "other"
    begun(path)
    other.write_bytes(b"of somebody else")
    if (path / name).is_dir():
        (path / name).rmdir()
    else:
        (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(other)
    with pytest.raises(UserError, match=rf"{name} is a symbolic link, expected .*; remove it"):
        RunDirectory.open(path, Settings())
    assert other.read_bytes() == b"of somebody else"


WRITES: dict[str, Callable[[Path], object]] = {
    "00000001.rows": lambda folder: Segments(folder).cut({1: 16}),
    "run.db-newest": lambda folder: SequenceFile(folder / "run.db-newest", read_only=False).set(1),
    "0-1.part": lambda folder: PartialFiles(folder).open("0-1"),
    ".00000001.safetensors.part": lambda folder: checkpoints.write(folder, 1, {}, {}),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_symbolic_link_that_comes_later_is_not_followed(tmp_path: Path, name: str) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    content = HEADER + b"of somebody else"
    other.write_bytes(content)
    folder.mkdir()
    (folder / name).symlink_to(other)
    with pytest.raises((UserError, OSError)):
        WRITES[name](folder)
    assert other.read_bytes() == content


def test_without_its_lock_file_a_directory_is_still_in_use(tmp_path: Path) -> None:
    first = RunDirectory.open(tmp_path / "run", Settings())
    first.lock.unlink()
    with pytest.raises(UserError, match="is in use by another process"):
        RunDirectory.open(tmp_path / "run", Settings())
    first.close()
    RunDirectory.open(tmp_path / "run", Settings()).close()


def test_a_run_resumes_under_the_same_settings(tmp_path: Path) -> None:
    settings = Settings(seed=7, policy={"name": "fedbuff", "settings": {"a": 1.0}})
    begun(tmp_path / "run", settings)
    directory = RunDirectory.open(tmp_path / "run", settings)
    assert not directory.is_new
    assert directory.settings == settings
    directory.close()


def test_a_run_that_died_before_it_stored_anything_is_new(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, Settings()).close()
    (tmp_path / "run.db").touch()  # as SQLite leaves it between its creation and its first page
    directory = RunDirectory.open(tmp_path, Settings())
    assert directory.is_new
    directory.close()


def test_every_key_that_is_free_exists() -> None:
    sections = {key.section for key in KEYS.values()}
    assert sections >= _FREE_SECTIONS
    assert set(KEYS) >= _FREE_KEYS


def test_of_a_free_section_nothing_is_compared_and_bounds_on_updates_decide_all_the_same() -> None:
    assert not {name for name in _values(Settings()) if KEYS[name].section in _FREE_SECTIONS}
    assert {name for name in KEYS if KEYS[name].section == "server" and decides(name)} == _ADMISSION_KEYS


def test_a_run_does_not_depend_on_an_attack_by_clients(tmp_path: Path) -> None:
    begun(tmp_path)
    RunDirectory.open(tmp_path, Settings(attack={"name": "scale", "clients": 3})).close()  # type: ignore[arg-type]
    assert decides("attack.name") and decides("attack.factor") and decides("attack.clients")


def test_data_paths_and_measurement_settings_may_differ(tmp_path: Path) -> None:
    begun(tmp_path)
    other = Settings(
        evaluate_every=3,
        evaluate_clients_every=2,
        save_model="elsewhere",
        data={"path": "p", "cache": "c", "download": True},
        policy={"memory": "mapped", "memory_folder": "m"},
        server={"address": "tcp://127.0.0.1:1", "lease_s": 99.0, "norm_max": 2.5, "num_examples_max": None},
        client={"first": 3},
        run={"durability": "full"},
    )
    RunDirectory.open(tmp_path, other).close()


@pytest.mark.parametrize(
    ("then", "now", "sentence"),
    [
        ({"seed": 1}, {"seed": 2}, "seed is 2, but the run in .* began with 1; use that value, or name another --run"),
        ({}, {"clients": 3}, "clients is 3, but .* began with 20;"),
        ({}, {"rounds": 300}, "rounds is 300, but .* began with 200;"),
        ({}, {"min_clients": 2}, "min_clients is 2, but .* began with null;"),
        ({}, {"threads": 2}, "threads is 2, but .* began with 1;"),
        ({}, {"device": "cpu"}, "device is 'cpu', but .* began with 'auto';"),
        ({}, {"model": {"name": "logreg"}}, "model.name is 'logreg', but .* began with 'digits_cnn';"),
        ({}, {"data": {"name": "mnist"}}, "data.name is 'mnist', but .* began with 'digits';"),
        ({}, {"partition": {"alpha": 1.0}}, r"partition.alpha is 1.0, but .* began with 0.3;"),
        (
            {},
            {"training": {"schedule": {"name": "cosine"}}},
            "training.schedule.name is 'cosine', but .* began with 'constant';",
        ),
        ({}, {"policy": {"name": "fedbuff"}}, "policy.name is 'fedbuff', but .* began with 'dynsgd';"),
        (
            {"policy": {"settings": {"a": 1, "b": 1}}},
            {"policy": {"settings": {"a": 1, "b": 2}}},
            "policy.settings.b is 2, but .* began with 1;",
        ),
        (
            {"policy": {"settings": {"a": 1}}},
            {},
            "policy.settings.a is null, but .* began with 1;",
        ),
        ({}, {"trigger": {"name": "sync"}}, "trigger.name is 'sync', but .* began with 'k-async';"),
        ({}, {"selector": {"name": "random"}}, "selector.name is 'random', but .* began with 'all';"),
        ({}, {"scenario": {"name": "lte"}}, "scenario.name is 'lte', but .* began with null;"),
    ],
)  # fmt: skip
def test_a_key_that_moves_a_bit_of_the_model_is_named(
    tmp_path: Path, then: dict[str, object], now: dict[str, object], sentence: str
) -> None:
    begun(tmp_path, Settings(**then))
    with pytest.raises(UserError, match=sentence):
        RunDirectory.open(tmp_path, Settings(**now))
    RunDirectory.open(tmp_path, Settings(**then)).close()  # and the lock was given back


def test_settings_read_back_mean_what_they_meant(tmp_path: Path) -> None:
    """A default that gives way, as trigger.k does where there are fewer clients, gives way again."""
    settings = Settings(clients=3, trigger=TriggerSettings(name="k-async"))
    directory = begun(tmp_path, settings)
    directory = RunDirectory.look(tmp_path)
    assert build.coordinator_settings(directory.settings) == build.coordinator_settings(settings)


# --- one process at a time ---

_HOLDS = """
import sys
from pathlib import Path
from unstale.config.settings import Settings
from unstale.journal.rundir import RunDirectory

directory = RunDirectory.open(Path(sys.argv[1]), Settings())
print("open", flush=True)
sys.stdin.read()
"""


def test_a_directory_belongs_to_one_process_until_that_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    with pytest.raises(UserError, match=f"{tmp_path} is in use by another process; end that server"):
        RunDirectory.open(tmp_path, Settings())
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    RunDirectory.open(tmp_path, Settings()).close()


def test_a_reader_needs_no_lock(tmp_path: Path) -> None:
    begun(tmp_path, Settings(seed=3))
    directory = RunDirectory.open(tmp_path, Settings(seed=3))
    looked = RunDirectory.look(tmp_path)
    assert looked.settings.seed == 3
    looked.close()
    directory.close()


def test_all_that_lies_in_it_counts_to_its_size(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    before = directory.size_bytes
    assert before == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    (directory.segments / "00000001.rows").write_bytes(bytes(1000))
    directory.transfers.mkdir()
    (directory.transfers / "0-1.part").write_bytes(bytes(200))
    assert directory.size_bytes == before + 1200
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    tmp_path.rmdir()
    assert directory.size_bytes == 0


# --- its errors ---


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"has other files, such as 'thesis\.tex', expected an empty folder"):
        RunDirectory.open(tmp_path, Settings())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match=r"cannot open the run directory .*run: file exists"):
        RunDirectory.open(tmp_path / "run", Settings())


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_the_error_for_a_folder_without_a_run_describes_a_run(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run")
    with pytest.raises(UserError, match=r"is not the directory of a run, expected one with config\.yaml and run\.db"):
        RunDirectory.look(tmp_path / "run")


def test_reading_a_run_that_has_not_begun_reports_it(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, Settings()).close()
    with pytest.raises(UserError, match="has not begun yet"):
        RunDirectory.look(tmp_path)


def test_missing_settings_are_damage(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(DamagedError, match=r"config\.yaml is missing beside run\.db"):
        RunDirectory.open(tmp_path, Settings())


def test_settings_that_cannot_be_read_are_damage(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: [")
    with pytest.raises(DamagedError, match=r"settings of the run cannot be read: .*config\.yaml.*not YAML"):
        RunDirectory.open(tmp_path, Settings())


@pytest.mark.parametrize("beside", ["segments/00000001.rows", "checkpoints/00000001.safetensors"])
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_database_that_is_missing_or_empty_beside_what_it_names_is_damage(
    tmp_path: Path, beside: str, harm: Callable[[Path], None]
) -> None:
    directory = begun(tmp_path)
    (tmp_path / beside).touch()
    harm(directory.database)
    for way in (lambda: RunDirectory.open(tmp_path, Settings()), lambda: RunDirectory.look(tmp_path)):
        with pytest.raises(DamagedError, match=r"run\.db is missing or empty beside stored data"):
            way()


def test_partial_files_of_a_killed_server_are_deleted(tmp_path: Path) -> None:
    begun(tmp_path)
    part = tmp_path / "checkpoints" / ".00000050.safetensors.part"
    part.touch()
    RunDirectory.open(tmp_path, Settings()).close()
    assert not part.exists()
