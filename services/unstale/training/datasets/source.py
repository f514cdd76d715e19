"""Where a data set is to be found, and how to say that it is not there."""

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

# What readers of other people's formats raise at a file that is not there, torn or something else.
_UNREADABLE = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which data set is wanted, and what may be done for it.

    name: one of DATASETS or `package.module:factory`. path: the file or folder of `npz` and `folder`. cache: the
    folder of all others, `~` allowed. download: whether the network may be used for what the cache lacks. normalise:
    one of NORMALISE. column: the column of an `.npz` that says who an example is from. allow_factory: whether the name
    may be that of code; never for a name that came from a server. section: of the configuration, where the path stands.
    """

    name: str
    path: Path | None = None
    cache: str = CACHE
    download: bool = False
    normalise: str = "standard"
    column: str | None = None
    allow_factory: bool = True
    section: str = "data"

    @property
    def folder(self) -> Path:
        """The cache."""
        return cache_folder(self.cache)

    @property
    def place(self) -> str:
        """The cache, for people: as it was given, unless it is another one."""
        return self.cache if self.folder == Path(self.cache).expanduser() else str(self.folder)

    @property
    def command(self) -> str:
        """The command that gets this data set."""
        elsewhere = "" if self.cache == CACHE else f" --cache {shlex.quote(self.cache)}"
        return f"unstale data show {self.name}{elsewhere} --download"


def cache_folder(cache: str = CACHE) -> Path:
    """The folder of a cache, `~` allowed. The default cache is `unstale` in $XDG_CACHE_HOME where that is given.

    A default cache that lies in `~/.cache` all the same is used as long as there is none in $XDG_CACHE_HOME. By
    the XDG Base Directory Specification a relative $XDG_CACHE_HOME is ignored.
    """
    folder = Path(cache).expanduser()
    home = os.environ.get("XDG_CACHE_HOME", "")
    if cache != CACHE or not os.path.isabs(home):
        return folder
    own = Path(home, "unstale")
    return folder if folder.is_dir() and not own.is_dir() else own


def fetched(
    source: Source,
    files: str,
    read: Callable[[], Made],
    download: Callable[[], object],
    needs: str = "",
) -> Made:
    """What `read` makes of the cache; where it cannot and `source.download` is set, `download` comes first.

    files: a pattern of what `read` wants, relative to the cache. needs: a command that the download needs first.
    Without `source.download` the network is not touched. Raises UserError, which names the command that helps.
    """
    try:
        return read()
    except _UNREADABLE as error:
        if not source.download:
            raise _unreadable(source, files, error, needs) from error
    try:
        download()
        return read()
    except Exception as error:  # one of many libraries' and of the network's; the sentence says which
        raise UserError(
            f"data set {source.name!r} cannot be downloaded to {source.place} ({said(error)}); "
            f"check the network{_deleting(source, files)} and try again{', or put the files there' * bool(needs)}"
        ) from error


def is_there(source: Source, files: str) -> bool:
    """Whether anything in the cache matches the pattern."""
    return source.folder.is_dir() and any(source.folder.glob(files))


def said(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _unreadable(source: Source, files: str, error: BaseException, needs: str) -> UserError:
    command = f"{needs} && {source.command}" if needs else source.command
    if is_there(source, files):
        return UserError(
            f"data set {source.name!r} is not whole in {source.place} ({said(error)}); "
            f"delete {files} there and get it again with: {command}"
        )
    return UserError(
        f"data set {source.name!r} is not in {source.place}; get it with: {command}, or set data.download"
    )


def _deleting(source: Source, files: str) -> str:
    return f", delete {files} there" if is_there(source, files) else ""
