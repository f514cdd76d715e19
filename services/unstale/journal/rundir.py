"""The directory of a run: what lies where in it, and who may write."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from unstale.config.keys import KEYS, OPEN_SECTIONS
from unstale.config.load import load, shown
from unstale.config.settings import Settings
from unstale.config.write import resolved
from unstale.errors import UserError
from unstale.journal.disk import PART, DamagedError, locked, sync_folder, trouble

CONFIG = "config.yaml"
DATABASE = "run.db"
SEGMENTS = "segments"
CHECKPOINTS = "checkpoints"
COMPENSATIONS = "compensations"
TRANSFERS = "transfers"
LOCK = "lock"
SET_ASIDE = "set-aside"

_FREE_SECTIONS = frozenset({"server", "client", "injector", "simulation", "run"})
_FREE_KEYS = frozenset(
    {
        "evaluate_every",
        "evaluate_clients_every",
        "save_model",
        "data.path",
        "data.cache",
        "data.download",
        "policy.memory",
        "compensator.ray",
        "compensator.ray_gpus",
        "policy.memory_folder",
    }
)
_ADMISSION_KEYS = frozenset({"server.norm_max", "server.num_examples_max"})
"""What is free says only where things lie, how they are run and what is looked at: it may differ when a run goes on.
All else may change a bit of the model, and so do these keys of a free section, which decide what counts. They may
differ all the same: verdicts are recorded as they are given. When leases end and who is in quarantine is recorded as it
happens, too, so `server.lease_s` and its like are free.
"""


def decides(key: str) -> bool:
    """Whether a key, by its whole name, may change a bit of the model, or what counts."""
    section = key.partition(".")[0] if "." in key else ""
    return key in _ADMISSION_KEYS or not (section in _FREE_SECTIONS or key in _FREE_KEYS)


class RunDirectory:
    """The directory of one run, by `open` for the one process that writes to it, or by `look` for who reads.

    path: of the directory. is_new: nothing has been stored in it yet. settings: of the run, as resolved when it began.
    """

    def __init__(self, path: Path, settings: Settings, *, is_new: bool, lock: int | None) -> None:
        """Use `open` or `look`."""
        self.path = path
        self.settings = settings
        self.is_new = is_new
        self._lock = lock

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Make it or go on in it, and keep others out until `close`.

        Raises UserError when another process has it, when its settings are others, or when it is something else.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_is_ours(path)
            lock = _locked(path)
        except OSError as error:
            raise trouble("open the run directory", path, error) from None
        try:
            if (path / CONFIG).exists():
                began_with = _settings_of(path)
                _check_same(path, began_with, settings)
            else:
                _check_has_nothing(path)
                _write_settings(path, settings)
                began_with = settings
            for folder in (SEGMENTS, CHECKPOINTS, COMPENSATIONS):
                (path / folder).mkdir(mode=0o700, exist_ok=True)
            for folder in (CHECKPOINTS, COMPENSATIONS):
                for part in (path / folder).glob(
                    f".*{PART}"
                ):  # of a server that was killed while it wrote it
                    part.unlink()
            sync_folder(path)
            is_new = not _has_database(path)
            if is_new:
                _check_no_rows(path)
        except OSError as error:
            os.close(lock)
            raise trouble("write to the run directory", path, error) from None
        except BaseException:
            os.close(lock)
            raise
        return cls(path, began_with, is_new=is_new, lock=lock)

    @classmethod
    def take(cls, path: Path) -> Self:
        """The directory of a run that has begun, with its own settings; keeps others out until `close`.

        Raises UserError when another process has it, or when it is no run directory.
        """
        looked = cls.look(path)
        return cls.open(path, looked.settings)

    @classmethod
    def look(cls, path: Path) -> Self:
        """For reading alone; a server may write to it meanwhile. Raises UserError when it is no run directory."""
        if not (path / CONFIG).is_file():
            raise _no_run(path)
        if not _has_database(path):
            _check_no_rows(path)
            raise UserError(
                f"the run in {path} has not begun yet: there is no {DATABASE}; start `unstale server` on it"
            )
        return cls(path, _settings_of(path), is_new=False, lock=None)

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def segments(self) -> Path:
        return self.path / SEGMENTS

    @property
    def transfers(self) -> Path:
        """Of updates that come in chunks, what has come."""
        return self.path / TRANSFERS

    @property
    def compensations(self) -> Path:
        """What rounds were compensated with, one file a version."""
        return self.path / COMPENSATIONS

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def size_bytes(self) -> int:
        """What all of it takes on disk now, whoever writes to it meanwhile. Any thread."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # deleted since it was listed
                    total += os.stat(os.path.join(folder, name)).st_size
        return total

    def close(self) -> None:
        """Let others in."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _check_is_ours(path: Path) -> None:
    """A folder of other things is not filled with ours."""
    names = {entry.name for entry in path.iterdir()} - {LOCK, _part(CONFIG)}
    if names and CONFIG not in names and DATABASE not in names:
        raise UserError(
            f"{path} holds other things, such as {min(names)!r}, expected an empty folder or the directory of a run; "
            "name another --run directory"
        )


def _no_run(path: Path) -> UserError:
    return UserError(
        f"{path} is not the directory of a run, expected one with {CONFIG} and {DATABASE}, as `unstale server --run` "
        "makes it"
    )


def _check_has_nothing(path: Path) -> None:
    if (path / DATABASE).exists():
        raise DamagedError(
            f"{path / CONFIG} is missing beside {DATABASE}; put it back from a copy, or name another --run directory"
        )


def _has_database(path: Path) -> bool:
    """An empty file is one that a server was about to make when it was killed."""
    database = path / DATABASE
    return database.exists() and database.stat().st_size > 0


def _check_no_rows(path: Path) -> None:
    if any((path / SEGMENTS).glob("*")) or any((path / CHECKPOINTS).glob("*")):
        raise DamagedError(
            f"{path / DATABASE} is missing or empty beside what was stored; put it back from a copy, or name another "
            "--run directory"
        )


def _locked(path: Path) -> int:
    in_use = f"{path} is in use by another process; end that server, or name another --run directory"
    return locked(path / LOCK, in_use)


# --- the settings ---


def _write_settings(path: Path, settings: Settings) -> None:
    part = path / _part(CONFIG)
    with part.open("w", encoding="utf-8") as opened:
        opened.write(
            f"# The settings of this run, as they were resolved when it began.\n{resolved(settings)}"
        )
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(path / CONFIG)


def _part(name: str) -> str:
    return f".{name}{PART}"


def _settings_of(path: Path) -> Settings:
    """As the run began. A value that is its default counts as not given, as it did then."""
    try:
        return Settings(**load(path / CONFIG).model_dump(exclude_defaults=True))
    except UserError as error:
        raise DamagedError(f"the settings of the run cannot be read: {error}") from None


def _check_same(path: Path, began_with: Settings, now: Settings) -> None:
    then_by_key, now_by_key = _values(began_with), _values(now)
    for key in sorted(then_by_key.keys() | now_by_key.keys()):
        then, given = then_by_key.get(key), now_by_key.get(key)
        if then != given:
            raise UserError(
                f"{key} is {shown(given)}, but the run in {path} began with {shown(then)}; go on with that, or name "
                "another --run directory"
            )


def _values(settings: Settings) -> dict[str, Any]:
    """Every value that must stay, by its key; those of the policy's own settings one by one."""
    values: dict[str, Any] = {}
    for key in KEYS.values():
        if key.name in _ADMISSION_KEYS or not decides(key.name):
            continue
        value: Any = settings
        for part in key.name.split("."):
            value = getattr(value, part)
        if key.name in OPEN_SECTIONS:
            values |= {f"{key.name}.{name}": own for name, own in value.items()}
        else:
            values[key.name] = value
    return values
