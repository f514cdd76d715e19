"""The directory of a run: its files, its lock and its settings."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import ValidationError

from unstale.config.keys import KEYS, OPEN_SECTIONS
from unstale.config.load import load, shown
from unstale.config.loader import Loader
from unstale.config.settings import Settings
from unstale.config.write import resolved
from unstale.errors import UserError
from unstale.journal.disk import NOFOLLOW, PART, DamagedError, locked, private_folder, sync_folder, user_errors
from unstale.journal.sqlite import Connection, reported
from unstale.journal.tables import META

CONFIG = "config.yaml"
DATABASE = "run.db"
SEGMENTS = "segments"
CHECKPOINTS = "checkpoints"
COMPENSATIONS = "compensations"
TRANSFERS = "transfers"
LOCK = "lock"
SET_ASIDE = "set-aside"
SETTINGS = "config"  # key in the table meta: the text of `config.yaml` when the last server started

_CONFIG_PART = f".{CONFIG}{PART}"
_NAMES = (
    *(CONFIG, _CONFIG_PART, LOCK, SEGMENTS, CHECKPOINTS, COMPENSATIONS, TRANSFERS, SET_ASIDE),
    *(f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-newest")),
)

_FREE_SECTIONS = frozenset({"server", "client", "injector", "simulation", "run"})
_FREE_KEYS = frozenset(
    (
        *("evaluate_every", "evaluate_clients_every", "save_model", "data.path", "data.cache", "data.download"),
        *("policy.memory", "policy.memory_folder", "compensator.ray", "compensator.ray_gpus"),
    )
)
_ADMISSION_KEYS = frozenset({"server.norm_max", "server.num_examples_max"})
_CLIENTS_SECTIONS = frozenset({"attack"})
"""Free keys concern paths, execution and observation: they may change when a run resumes. All others may change a bit
of the model. So may admission keys and sections of clients, which may change all the same: verdicts are recorded, and
no server reads sections of clients. Ends of leases and quarantine are recorded too, so `server.lease_s` is free.
"""


def decides(key: str) -> bool:
    """Whether a key, by its full name, may change a bit of the model or a verdict."""
    section = key.partition(".")[0] if "." in key else ""
    return key in _ADMISSION_KEYS or not (section in _FREE_SECTIONS or key in _FREE_KEYS)


class RunDirectory:
    """The directory of one run: `open` for the process that writes to it, `look` for readers."""

    def __init__(self, path: Path, settings: Settings, *, is_new: bool, locks: ExitStack) -> None:
        self.path = path
        self.settings = settings  # as resolved when the run began
        self.is_new = is_new  # nothing is stored yet
        self.config, self.lock, self.database = path / CONFIG, path / LOCK, path / DATABASE
        self.segments, self.checkpoints = path / SEGMENTS, path / CHECKPOINTS
        self.compensations = path / COMPENSATIONS  # estimates of rounds, a file for each version
        self.transfers = path / TRANSFERS  # partial updates that arrive in chunks
        self._locks = locks

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Create or open the directory, and lock it until `close`.

        Raises UserError where another process has it, its settings differ, or it is not the directory of a run.
        """
        with user_errors("open the run directory", path):
            private_folder(path)
            links = [path / name for name in _NAMES if (path / name).is_symlink()]
            if links:
                raise UserError(
                    f"{links[0]} is a symbolic link, expected a file or folder of its own; remove it, or name another "
                    "folder"
                )
            names = {entry.name for entry in path.iterdir()} - {LOCK, _CONFIG_PART}
            if names and CONFIG not in names and DATABASE not in names:
                raise UserError(
                    f"{path} has other files, such as {min(names)!r}, expected an empty folder or the directory of a "
                    "run; name another --run directory"
                )
            locks = _locked(path)
        with ExitStack() as stack, user_errors("write to the run directory", path):
            stack.enter_context(locks)
            first_settings = _prepared(path, settings)
            is_new = not _has_database(path)
            if is_new:
                _check_no_rows(path)
                os.close(_open_private(str(path / DATABASE), os.O_RDWR | os.O_CREAT))  # SQLite keeps its mode
            locks = stack.pop_all()
        return cls(path, first_settings, is_new=is_new, locks=locks)

    @classmethod
    def take(cls, path: Path) -> Self:
        """Open the directory of a run that has begun, with its own settings. Raises UserError as `open`."""
        return cls.open(path, cls.look(path).settings)

    @classmethod
    def look(cls, path: Path) -> Self:
        """Open a directory for reading, while a server may write to it. Raises UserError if it is not that of a run."""
        if not (path / CONFIG).is_file():
            _check_has_nothing(path)
            raise UserError(
                f"{path} is not the directory of a run, expected one with {CONFIG} and {DATABASE}, as `unstale server "
                "--run` creates it"
            )
        if not _has_database(path):
            _check_no_rows(path)
            raise UserError(
                f"the run in {path} has not begun yet: there is no {DATABASE}; start `unstale server` on it"
            )
        return cls(path, _settings_of(path), is_new=False, locks=ExitStack())

    @classmethod
    def of_files(cls, path: Path) -> Self:
        """Only the paths of files."""
        return cls(path, Settings(), is_new=False, locks=ExitStack())

    @property
    def size_bytes(self) -> int:
        """Size of all files; a server may write to them meanwhile. Any thread."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # deleted meanwhile
                    total += os.stat(os.path.join(folder, name)).st_size
        return total

    def close(self) -> None:
        """Unlock the directory."""
        self._locks.close()


def _check_has_nothing(path: Path) -> None:
    if (path / DATABASE).exists():
        remedy = _remedy(path, recorded_text(path / DATABASE))
        raise DamagedError(f"{path / CONFIG} is missing beside {DATABASE}; {remedy}")


def _has_database(path: Path) -> bool:
    """Whether there is a database; a server that was killed may leave an empty file."""
    database = path / DATABASE
    return database.exists() and database.stat().st_size > 0


def _check_no_rows(path: Path) -> None:
    if any((path / SEGMENTS).glob("*")) or any((path / CHECKPOINTS).glob("*")):
        raise DamagedError(
            f"{path / DATABASE} is missing or empty beside stored data; put it back from a copy, or name another "
            "--run directory"
        )


def _locked(path: Path) -> ExitStack:
    """Locks of the directory and of the file `lock`, which may be deleted while a server runs."""
    in_use = f"{path} is in use by another process; end that server, or name another --run directory"
    with ExitStack() as stack:
        stack.callback(os.close, locked(path, in_use, os.O_RDONLY | os.O_DIRECTORY))  # harder to delete than a file
        stack.callback(os.close, locked(path / LOCK, in_use))
        return stack.pop_all()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | NOFOLLOW, 0o600)


# --- the settings ---


def _prepared(path: Path, settings: Settings) -> Settings:
    """Create or check the settings and folders of a run; returns the settings with which it began."""
    if (path / CONFIG).exists():
        recorded = _settings_of(path)
        for key, before, now in _different(recorded, settings):
            raise UserError(
                f"{key} is {shown(now)}, but the run in {path} began with {shown(before)}; use that value, or name "
                "another --run directory"
            )
        settings = recorded
    else:
        _check_has_nothing(path)
        _write_config(path, f"# The settings of this run, as they were resolved when it began.\n{resolved(settings)}")
    for name in (SEGMENTS, CHECKPOINTS, COMPENSATIONS):
        (path / name).mkdir(mode=0o700, exist_ok=True)
    for name in (CHECKPOINTS, COMPENSATIONS):
        for part in (path / name).glob(f".*{PART}"):  # of a server that was killed
            part.unlink()
    sync_folder(path)
    return settings


def _write_config(path: Path, text: str) -> None:
    part = path / _CONFIG_PART
    with open(part, "w", encoding="utf-8", opener=_open_private) as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(path / CONFIG)


def put_back_settings(path: Path) -> bool:
    """Write `config.yaml` from `run.db` if it is missing or damaged; returns whether it was written.

    Raises UserError where another process has the directory, or the file cannot be written.
    """
    text = recorded_text(path / DATABASE)
    if text is None:
        return False
    with _locked(path), user_errors("write to the run directory", path):
        with suppress(DamagedError):
            if (path / CONFIG).is_file():
                _settings_of(path)
                return False
        _write_config(path, text)
        sync_folder(path)
    return True


def recorded_text(database: Path) -> str | None:
    """`config.yaml` as recorded in a database; None without it, or where the database cannot be read."""
    if not database.exists():
        return None
    try:
        with reported(database, "read"), closing(Connection(database, read_only=True)) as connection:
            return next((text or None for _, text in connection.select(META, "WHERE key = ?", SETTINGS)), None)
    except UserError:  # raised again when the run opens it
        return None


def _parsed(text: str) -> Settings | None:
    """The settings in a text, None where another version of unstale wrote it."""
    try:
        return Settings(**Settings(**yaml.load(text, Loader)).model_dump(exclude_defaults=True))  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValidationError, TypeError):
        return None


def _settings_of(path: Path) -> Settings:
    """Settings of the run when it began; defaults count as not given."""
    text = recorded_text(path / DATABASE)
    try:
        settings = Settings(**load(path / CONFIG).model_dump(exclude_defaults=True))
    except UserError as error:
        raise DamagedError(f"the settings of the run cannot be read: {error}; {_remedy(path, text)}") from None
    recorded = None if text is None else _parsed(text)
    if recorded is not None:
        for key, before, now in _different(recorded, settings):
            raise DamagedError(
                f"{path / CONFIG} was changed: {key} is {shown(now)}, and the run began with {shown(before)}; "
                f"{_remedy(path, text)}"
            )
    return settings


def _remedy(path: Path, text: str | None) -> str:
    """Remedy for a damaged `config.yaml`. text: its copy in `run.db`."""
    if text is None:
        return "put it back from a copy, or name another --run directory"
    return f"put it back from a copy, or run `unstale restore {path}`, which writes it again from {DATABASE}"


def _different(recorded: Settings, settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Keys that must not change and have changed, with both values."""
    before, now = _values(recorded), _values(settings)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield key, before.get(key), now.get(key)


def _values(settings: Settings) -> dict[str, Any]:
    """Values that must not change, by key; each setting of the policy has a key."""
    values: dict[str, Any] = {}
    for key in KEYS.values():
        if key.section in _CLIENTS_SECTIONS or key.name in _ADMISSION_KEYS or not decides(key.name):
            continue
        value: Any = settings
        for part in key.name.split("."):
            value = getattr(value, part)
        if key.name in OPEN_SECTIONS:
            values |= {f"{key.name}.{name}": own for name, own in value.items()}
        else:
            values[key.name] = value
    return values
