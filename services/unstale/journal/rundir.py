"""The directory of a run: what lies where in it, and who may write."""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from unstale.config.keys import KEYS, OPEN_SECTIONS
from unstale.config.load import load, shown
from unstale.config.settings import Settings
from unstale.config.write import resolved
from unstale.errors import UserError
from unstale.journal import recorded_settings
from unstale.journal.disk import (
    NOFOLLOW,
    PART,
    DamagedError,
    check_no_links,
    locked,
    locked_folder,
    private_folder,
    sync_folder,
    trouble,
)

CONFIG = "config.yaml"
DATABASE = "run.db"
SEGMENTS = "segments"
CHECKPOINTS = "checkpoints"
COMPENSATIONS = "compensations"
TRANSFERS = "transfers"
LOCK = "lock"
SET_ASIDE = "set-aside"

_NAMES = (
    *(CONFIG, f".{CONFIG}{PART}", LOCK, SEGMENTS, CHECKPOINTS, COMPENSATIONS, TRANSFERS, SET_ASIDE),
    *(f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-newest")),
)

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
_CLIENTS_SECTIONS = frozenset({"attack"})
"""What is free says only where things lie, how they are run and what is looked at: it may differ when a run goes on.
All else may change a bit of the model, and so do these keys of a free section, which decide what counts. They may
differ all the same: verdicts are recorded as they are given. When leases end and who is in quarantine is recorded as it
happens, too, so `server.lease_s` and its like are free. A section of the clients' own decides, too, by the updates that
they send; no server reads it, so a run may be resumed with another one.
"""


def decides(key: str) -> bool:
    """Whether a key, by its whole name, may change a bit of the model, or what counts."""
    section = key.partition(".")[0] if "." in key else ""
    return key in _ADMISSION_KEYS or not (section in _FREE_SECTIONS or key in _FREE_KEYS)


class RunDirectory:
    """The directory of one run, by `open` for the one process that writes to it, or by `look` for who reads.

    path: of the directory. is_new: nothing has been stored in it yet. settings: of the run, as resolved when it began.
    """

    def __init__(self, path: Path, settings: Settings, *, is_new: bool, locks: Collection[int]) -> None:
        """Use `open` or `look`."""
        self.path = path
        self.settings = settings
        self.is_new = is_new
        self._locks = locks

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Make it or go on in it, and keep others out until `close`.

        Raises UserError when another process has it, when its settings are others, or when it is something else.
        """
        try:
            private_folder(path)
            check_no_links(path, _NAMES)
            _check_is_ours(path)
            locks = _locked(path)
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
                os.close(
                    _for_the_owner(str(path / DATABASE), os.O_RDWR | os.O_CREAT)
                )  # SQLite keeps its mode
        except OSError as error:
            _unlock(locks)
            raise trouble("write to the run directory", path, error) from None
        except BaseException:
            _unlock(locks)
            raise
        return cls(path, began_with, is_new=is_new, locks=locks)

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
            _check_has_nothing(path)
            raise _no_run(path)
        if not _has_database(path):
            _check_no_rows(path)
            raise UserError(
                f"the run in {path} has not begun yet: there is no {DATABASE}; start `unstale server` on it"
            )
        return cls(path, _settings_of(path), is_new=False, locks=())

    @classmethod
    def of_files(cls, path: Path) -> Self:
        """Only where the files of a run lie, whatever is in them."""
        return cls(path, Settings(), is_new=False, locks=())

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
        locks, self._locks = self._locks, ()
        _unlock(locks)


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
        way_out = _way_out(path, recorded_settings.text_of(path / DATABASE))
        raise DamagedError(f"{path / CONFIG} is missing beside {DATABASE}; {way_out}")


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


def _locked(path: Path) -> tuple[int, ...]:
    """Locks of the directory and of the file `lock`, which may have been deleted while a server holds it."""
    in_use = f"{path} is in use by another process; end that server, or name another --run directory"
    folder = locked_folder(path, in_use)
    try:
        return (folder, locked(path / LOCK, in_use))
    except BaseException:
        os.close(folder)
        raise


def _unlock(locks: Collection[int]) -> None:
    for lock in locks:
        os.close(lock)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | NOFOLLOW, 0o600)


# --- the settings ---


def _write_settings(path: Path, settings: Settings) -> None:
    _write_config(
        path, f"# The settings of this run, as they were resolved when it began.\n{resolved(settings)}"
    )


def _write_config(path: Path, text: str) -> None:
    part = path / _part(CONFIG)
    with open(part, "w", encoding="utf-8", opener=_for_the_owner) as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(path / CONFIG)


def put_back_settings(path: Path) -> bool:
    """Write `config.yaml` again from `run.db` where it is missing or damaged.

    Args:
        path: Of a run directory.

    Returns:
        Whether it was written.

    Raises:
        UserError: Another process has the directory, or the file cannot be written.
    """
    text = recorded_settings.text_of(path / DATABASE)
    if text is None:
        return False
    locks = _locked(path)
    try:
        with suppress(DamagedError):
            if (path / CONFIG).is_file():
                _settings_of(path)
                return False
        _write_config(path, text)
        sync_folder(path)
    except OSError as error:
        raise trouble("write to the run directory", path, error) from None
    finally:
        for lock in locks:
            os.close(lock)
    return True


def _part(name: str) -> str:
    return f".{name}{PART}"


def _settings_of(path: Path) -> Settings:
    """As the run began. A value that is its default counts as not given, as it did then."""
    text = recorded_settings.text_of(path / DATABASE)
    try:
        found = Settings(**load(path / CONFIG).model_dump(exclude_defaults=True))
    except UserError as error:
        raise DamagedError(
            f"the settings of the run cannot be read: {error}; {_way_out(path, text)}"
        ) from None
    recorded = None if text is None else recorded_settings.parsed(text)
    if recorded is not None:
        for key, then, now in _different(recorded, found):
            raise DamagedError(
                f"{path / CONFIG} was changed: {key} is {shown(now)}, and the run began with {shown(then)}; "
                f"{_way_out(path, text)}"
            )
    return found


def _way_out(path: Path, text: str | None) -> str:
    """What to do about `config.yaml`. text: as `run.db` holds it, None without one."""
    if text is None:
        return "put it back from a copy, or name another --run directory"
    return f"put it back from a copy, or run `unstale restore {path}`, which writes it again from {DATABASE}"


def _check_same(path: Path, began_with: Settings, now: Settings) -> None:
    for key, then, given in _different(began_with, now):
        raise UserError(
            f"{key} is {shown(given)}, but the run in {path} began with {shown(then)}; go on with that, or name "
            "another --run directory"
        )


def _different(then: Settings, now: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Keys that must stay and did not, with the value then and now."""
    then_by_key, now_by_key = _values(then), _values(now)
    for key in sorted(then_by_key.keys() | now_by_key.keys()):
        before, after = then_by_key.get(key), now_by_key.get(key)
        if before != after:
            yield key, before, after


def _values(settings: Settings) -> dict[str, Any]:
    """Every value that must stay, by its key; those of the policy's own settings one by one."""
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
