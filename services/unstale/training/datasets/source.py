"""Where a data set is stored, and error messages for a missing one."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from unstale.errors import UserError

CACHE = "~/.cache/unstale"
NORMALISE = ("standard", "unit", "raw")

Made = TypeVar("Made")

# Exceptions of readers for files that are missing, truncated or of another format.
_UNREADABLE = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The data set to load."""

    name: str  # one of DATASETS or `package.module:factory`
    path: Path | None = None  # the file or folder of `npz` and `folder`
    cache: str = CACHE  # the folder of all others, `~` allowed
    download: bool = False  # may use the network for files that are not in the cache
    normalise: str = "standard"  # one of NORMALISE
    column: str | None = None  # of an `.npz`, with the source of each example
    allow_factory: bool = True  # the name may be that of code; never for a name from a server
    section: str = "data"  # of the configuration with the path, for messages

    @property
    def folder(self) -> Path:
        return cache_folder(self.cache)

    @property
    def location(self) -> str:
        """The cache, for people: as given, unless `folder` is another one."""
        return self.cache if self.folder == Path(self.cache).expanduser() else str(self.folder)

    @property
    def command(self) -> str:
        """The command that downloads this data set."""
        cache_option = "" if self.cache == CACHE else f" --cache {shlex.quote(self.cache)}"
        return f"unstale data show {self.name}{cache_option} --download"


def cache_folder(cache: str = CACHE) -> Path:
    """The folder of a cache, `~` allowed. The default cache is `unstale` in $XDG_CACHE_HOME where that is given.

    An existing default cache in `~/.cache` is used until there is one in $XDG_CACHE_HOME. A relative $XDG_CACHE_HOME is
    ignored, as in the XDG Base Directory Specification.
    """
    folder = Path(cache).expanduser()
    home = os.environ.get("XDG_CACHE_HOME", "")
    if cache != CACHE or not os.path.isabs(home):
        return folder
    own = Path(home, "unstale")
    return folder if folder.is_dir() and not own.is_dir() else own


def fetched(
    source: Source, files: str, read: Callable[[], Made], download: Callable[[], object], needs: str = ""
) -> Made:
    """The result of `read` on the cache; if it fails and `source.download` is set, after a download.

    files: pattern of the files that `read` needs, relative to the cache. needs: command to run before the download.
    Raises UserError with the command that helps.
    """
    try:
        return read()
    except _UNREADABLE as error:
        if not source.download:
            raise _unreadable(source, files, error, needs) from error
    try:
        download()
        return read()
    except Exception as error:  # of libraries and of the network
        deleting = f", delete {files} there" if is_there(source, files) else ""
        raise UserError(
            f"data set {source.name!r} cannot be downloaded to {source.location} ({reason_of(error)}); "
            f"check the network{deleting} and try again{', or put the files there' * bool(needs)}"
        ) from error


def is_there(source: Source, files: str) -> bool:
    """Whether a file in the cache matches the pattern."""
    return source.folder.is_dir() and any(source.folder.glob(files))


def reason_of(error: BaseException) -> str:
    """The message of an exception, on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _unreadable(source: Source, files: str, error: BaseException, needs: str) -> UserError:
    command = f"{needs} && {source.command}" if needs else source.command
    if is_there(source, files):
        return UserError(
            f"data set {source.name!r} is not whole in {source.location} ({reason_of(error)}); "
            f"delete {files} there and get it again with: {command}"
        )
    return UserError(
        f"data set {source.name!r} is not in {source.location}; get it with: {command}, or set data.download"
    )
