"""The directory of a run: its files, its lock and its settings."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from operator import attrgetter
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
from unstale.journal.disk import PART
from unstale.journal.sqlite import Connection, sqlite_errors
from unstale.journal.tables import META
from unstale_client.disk import NOFOLLOW, DamagedError, locked, private_folder, sync_folder, user_errors

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
_NAMES = (  # all files and folders of a run; none may be a symbolic link
    *(CONFIG, _CONFIG_PART, LOCK, SEGMENTS, CHECKPOINTS, COMPENSATIONS, TRANSFERS, SET_ASIDE),
    *(f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-newest")),
)

_FREE_SECTIONS = frozenset({"server", "client", "injector", "simulation", "run"})
_FREE_KEYS = frozenset(
    (
        *("evaluate_every", "evaluate_clients_every", "save_model", "data.path", "data.cache", "data.download"),
        *("policy.memory", "policy.memory_folder", "ray", "compensator.ray", "compensator.ray_gpus", "trackers"),
    )
)
_ADMISSION_KEYS = frozenset({"server.norm_max", "server.num_examples_max"})
_CLIENT_SECTIONS = frozenset({"attack"})
"""Keys that may change when a run resumes. Free keys concern paths, execution and observation only; `server.lease_s` is
one, because ends of leases and quarantine are recorded. Admission keys and client sections can change the model, but
verdicts are recorded, and no server reads client sections.
"""


def decides(key: str) -> bool:
    """Whether a key, by its full name, can change a bit of the model or a verdict."""
    section = key.partition(".")[0] if "." in key else ""
    return key in _ADMISSION_KEYS or not (section in _FREE_SECTIONS or key in _FREE_KEYS)


class RunDirectory:
    """The directory of one run: `open` and `take` lock it to write, `look` reads."""

    def __init__(self, path: Path, settings: Settings, *, is_new: bool, locks: ExitStack) -> None:
        self.path = path
        self.settings = settings  # with which the run began
        self.is_new = is_new  # nothing is stored yet
        self.config, self.lock, self.database = path / CONFIG, path / LOCK, path / DATABASE
        self.segments, self.checkpoints = path / SEGMENTS, path / CHECKPOINTS
        self.compensations = path / COMPENSATIONS  # estimates of compensators, one file per version
        self.transfers = path / TRANSFERS  # partial updates that arrive in chunks
        self._locks = locks

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Create or open the directory, and lock it until `close`.

        Raises UserError if another process has locked it, its settings differ, or it has files but no run.
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
            first_settings = _prepare(path, settings)
            is_new = not _has_begun(path)
            if is_new:
                _check_no_stored_data(path)
                os.close(_open_private(str(path / DATABASE), os.O_RDWR | os.O_CREAT))  # SQLite keeps this mode
            locks = stack.pop_all()
        return cls(path, first_settings, is_new=is_new, locks=locks)

    @classmethod
    def take(cls, path: Path) -> Self:
        """Open and lock the directory of a run that has begun, with its own settings. Raises UserError as `open`."""
        return cls.open(path, cls.look(path).settings)

    @classmethod
    def look(cls, path: Path) -> Self:
        """Open the directory of a run that has begun to read it, without a lock. Raises UserError for others."""
        if not (path / CONFIG).is_file():
            _check_no_database(path)
            raise UserError(
                f"{path} is not the directory of a run, expected one with {CONFIG} and {DATABASE}, as `unstale server "
                "--run` creates it"
            )
        if not _has_begun(path):
            _check_no_stored_data(path)
            raise UserError(
                f"the run in {path} has not begun yet: there is no {DATABASE}; start `unstale server` on it"
            )
        return cls(path, _settings_of(path), is_new=False, locks=ExitStack())

    @classmethod
    def of_files(cls, path: Path) -> Self:
        """The paths of a directory that is not read: `settings` are defaults."""
        return cls(path, Settings(), is_new=False, locks=ExitStack())

    @property
    def size_bytes(self) -> int:
        """Size of all files, also while a server writes to them. Any thread."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # deleted meanwhile
                    total += os.stat(os.path.join(folder, name)).st_size
        return total

    def close(self) -> None:
        """Unlock the directory."""
        self._locks.close()


def _check_no_database(path: Path) -> None:
    if (path / DATABASE).exists():
        text = recorded_text(path / DATABASE)
        raise DamagedError(f"{path / CONFIG} is missing beside {DATABASE}; {_remedy(path, text)}")


def _has_begun(path: Path) -> bool:
    """Whether the run has a database. A killed server may leave an empty file, which counts as none."""
    database = path / DATABASE
    return database.exists() and database.stat().st_size > 0


def _check_no_stored_data(path: Path) -> None:
    if any((path / SEGMENTS).glob("*")) or any((path / CHECKPOINTS).glob("*")):
        raise DamagedError(
            f"{path / DATABASE} is missing or empty beside stored data; put it back from a copy, or name another "
            "--run directory"
        )


def _locked(path: Path) -> ExitStack:
    """Lock the directory and its file `lock`, which alone may be deleted and created again while a server runs."""
    in_use = f"{path} is in use by another process; end that server, or name another --run directory"
    with ExitStack() as stack:
        stack.callback(os.close, locked(path, in_use, os.O_RDONLY | os.O_DIRECTORY))
        stack.callback(os.close, locked(path / LOCK, in_use))
        return stack.pop_all()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | NOFOLLOW, 0o600)


def _prepare(path: Path, settings: Settings) -> Settings:
    """Create or check settings and folders of a run; returns the settings with which it began. Raises UserError."""
    if (path / CONFIG).exists():
        recorded = _settings_of(path)
        for key, before, now in _changed_keys(recorded, settings):
            raise UserError(
                f"{key} is {shown(now)}, but the run in {path} began with {shown(before)}; use that value, or name "
                "another --run directory"
            )
        settings = recorded
    else:
        _check_no_database(path)
        _write_config(path, f"# The settings of this run, as they were resolved when it began.\n{resolved(settings)}")
    for name in (SEGMENTS, CHECKPOINTS, COMPENSATIONS):
        (path / name).mkdir(mode=0o700, exist_ok=True)
    for name in (CHECKPOINTS, COMPENSATIONS):
        for part in (path / name).glob(f".*{PART}"):  # left by a killed server
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


def restore_config(path: Path) -> None:
    """Write `config.yaml` from its copy in `run.db` if it is missing or damaged, and there is a copy.

    Raises UserError if another process has locked the directory, or the file cannot be written.
    """
    text = recorded_text(path / DATABASE)
    if text is None:
        return
    with _locked(path), user_errors("write to the run directory", path):
        with suppress(DamagedError):
            if (path / CONFIG).is_file():
                _settings_of(path)
                return
        _write_config(path, text)
        sync_folder(path)


def recorded_text(database: Path) -> str | None:
    """Text of `config.yaml` in a database; None if it has none, does not exist or cannot be read."""
    if not database.exists():
        return None
    try:
        with sqlite_errors(database, "read"), closing(Connection(database, read_only=True)) as connection:
            return next((text or None for _, text in connection.select(META, "WHERE key = ?", SETTINGS)), None)
    except UserError:  # callers open the database later, and report the error then
        return None


def _parsed(text: str) -> Settings | None:
    """The settings in a text; None for a text that this version of unstale cannot load."""
    try:
        return _without_defaults(Settings(**yaml.load(text, Loader)))  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValidationError, TypeError):
        return None


def _without_defaults(settings: Settings) -> Settings:
    """The same settings, in which values that equal their defaults count as not given."""
    return Settings(**settings.model_dump(exclude_defaults=True))


def _settings_of(path: Path) -> Settings:
    """Settings of the run when it began. Raises DamagedError if they cannot be read or were changed since."""
    text = recorded_text(path / DATABASE)
    try:
        settings = _without_defaults(load(path / CONFIG))
    except UserError as error:
        raise DamagedError(f"the settings of the run cannot be read: {error}; {_remedy(path, text)}") from None
    recorded = None if text is None else _parsed(text)
    if recorded is not None:
        for key, before, now in _changed_keys(recorded, settings):
            raise DamagedError(
                f"{path / CONFIG} was changed: {key} is {shown(now)}, and the run began with {shown(before)}; "
                f"{_remedy(path, text)}"
            )
    return settings


def _remedy(path: Path, text: str | None) -> str:
    """The advice in errors about a damaged `config.yaml`. text: its copy in `run.db`."""
    if text is None:
        return "put it back from a copy, or name another --run directory"
    return f"put it back from a copy, or run `unstale restore {path}`, which writes it again from {DATABASE}"


def _changed_keys(recorded: Settings, settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Keys that have changed and must not, each with its former and present value."""
    before, now = _values(recorded), _values(settings)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield key, before.get(key), now.get(key)


def _values(settings: Settings) -> dict[str, Any]:
    """Values that must not change, by key; settings in open sections have a key each."""
    values: dict[str, Any] = {}
    for key in KEYS.values():
        if key.section in _CLIENT_SECTIONS or key.name in _ADMISSION_KEYS or not decides(key.name):
            continue
        value = attrgetter(key.name)(settings)
        if key.name in OPEN_SECTIONS:
            values |= {f"{key.name}.{name}": setting for name, setting in value.items()}
        else:
            values[key.name] = value
    return values
