"""The keys that may connect, each with the clients that it owns: a folder that is read again whenever it changes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from unstale.errors import UserError
from unstale.net import keys
from unstale.net.keys import Owner

log = logging.getLogger("unstale.keys")

FolderState = tuple[tuple[str, int, int, int, int], ...]
"""What tells that a folder has changed: name, inode, size and times of each file."""


class AuthorizedKeys:
    """Made: all of the folder was read; UserError for what is wrong in it. `refresh` belongs to one thread, the
    questions to any.

    A file that goes wrong later admits nobody, and is told in the log. Of two keys that own one client, the injector's
    aside, the one whose name comes first in the alphabet does.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owners: dict[str, Owner] = {}
        self._unreadable = False
        self._listed_ns = 0
        self._look: FolderState | None = None
        if not folder.is_dir():
            raise UserError(
                f"{folder} is not there, expected the keys that are admitted; see unstale keys new --help"
            )
        try:
            mistakes = self._read_again(only_new=False)
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({_why(error)})") from None
        if mistakes:
            raise mistakes[0]

    @property
    def owners(self) -> Mapping[str, Owner]:
        """By public key, in the order of their names."""
        return self._owners

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether this public key owns the client."""
        owner = self._owners.get(key or "")
        return owner is not None and client_id in owner.clients

    def refresh(self, *, only_new: bool = False) -> None:
        """Read the folder again if it has changed. One that cannot be read now leaves things as they are.

        only_new: look for files that came or went, which costs the same however many there are.
        """
        before = self._owners
        try:
            mistakes = self._read_again(only_new=only_new)
        except OSError as error:
            if not self._unreadable:
                log.warning("%s cannot be read now (%s); trying on", self._folder, _why(error))
            self._unreadable = True
            return
        self._unreadable = False
        for mistake in mistakes:
            log.warning("%s; it admits nobody", mistake)
        _log_changes("admitted", {key: one for key, one in self._owners.items() if key not in before})
        _log_changes("revoked", {key: one for key, one in before.items() if key not in self._owners})

    def _read_again(self, *, only_new: bool) -> list[UserError]:
        """What is wrong in the folder, if it has changed. Raises OSError, and then nothing has."""
        listed_ns = self._changed_ns()
        if only_new and listed_ns == self._listed_ns:
            return []
        look = self._stat_files()
        mistakes: list[UserError] = []
        if look != self._look:
            self._owners, mistakes = self._read()
        self._listed_ns, self._look = listed_ns, look
        return mistakes

    def _files(self) -> list[Path]:
        """A folder that is gone is an empty one: whoever deletes it wants nobody to come in."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        # Hidden ones are what editors leave there.
        own = [name for name in names if name.endswith(keys.PUBLIC_SUFFIX) and not name.startswith(".")]
        return [self._folder / name for name in sorted(own)]

    def _changed_ns(self) -> int:
        """When a file came or went last; 0 when the folder is gone."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _stat_files(self) -> FolderState:
        seen = []
        for file in self._files():
            try:
                about = file.stat()
            except FileNotFoundError:
                continue  # deleted just now
            seen.append((file.name, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
        return tuple(seen)

    def _read(self) -> tuple[dict[str, Owner], list[UserError]]:
        owners: dict[str, Owner] = {}
        mistakes: list[UserError] = []
        for file in self._files():
            try:
                key, owner = keys.owner(file)
                if key in owners:
                    raise UserError(f"{file} holds the key of {owners[key].name!r}, expected one of its own")
                check_unowned(str(file), owner, owners)
                owners[key] = owner
            except UserError as mistake:
                mistakes.append(mistake)
        return owners, mistakes


def check_unowned(where: str, owner: Owner, owners: Mapping[str, Owner]) -> None:
    """Raise UserError when one of its clients belongs to another key. where: begins the sentence."""
    for other in owners.values():
        if keys.INJECTOR in (owner.name, other.name):
            continue  # it passes on what the clients say, and checks their keys itself
        shared = owner.clients.shared_with(other.clients)
        if shared is not None:
            raise UserError(
                f"{where}: client {shared} belongs to {other.name!r} already; revoke that, or take other ids"
            )


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _log_changes(what: str, changed: Mapping[str, Owner]) -> None:
    if changed:
        log.info("keys %s: %s", what, ", ".join(owner.name for owner in changed.values()))
