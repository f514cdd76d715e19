"""The authorized public keys and their clients: a folder that is read again when it changes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from unstale.errors import UserError
from unstale.net import keys
from unstale.net.keys import Owner

log = logging.getLogger("unstale.keys")

FolderState = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size and times of each file."""


class AuthorizedKeys:
    """Reads the folder; raises UserError for a mistake in it. One thread calls `refresh`, any thread the other methods.

    A file that becomes invalid later authorizes no key, with a warning. Of two keys that own one client, the
    injector's aside, the one whose file comes first in the alphabet is authorized.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owners: dict[str, Owner] = {}
        self._unreadable = False
        self._listed_ns = 0
        self._state: FolderState | None = None
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist, expected the authorized keys; see unstale keys new --help")
        try:
            mistakes = self._read_if_changed(only_new=False)
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({keys.cause(error)})") from None
        if mistakes:
            raise mistakes[0]

    @property
    def owners(self) -> Mapping[str, Owner]:
        """By public key, in the order of their names."""
        return self._owners

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether a public key owns a client."""
        owner = self._owners.get(key or "")
        return owner is not None and client_id in owner.clients

    def refresh(self, *, only_new: bool = False) -> None:
        """Read the folder again if it has changed; keep the keys if it cannot be read.

        only_new: check for added and removed files only, at a cost that does not grow with their number.
        """
        before = self._owners
        try:
            mistakes = self._read_if_changed(only_new=only_new)
        except OSError as error:
            if not self._unreadable:
                log.warning("%s cannot be read now (%s); retrying", self._folder, keys.cause(error))
            self._unreadable = True
            return
        self._unreadable = False
        for mistake in mistakes:
            log.warning("%s; the file is ignored", mistake)
        _log_changes("admitted", {key: owner for key, owner in self._owners.items() if key not in before})
        _log_changes("revoked", {key: owner for key, owner in before.items() if key not in self._owners})

    def _read_if_changed(self, *, only_new: bool) -> list[UserError]:
        """Returns the mistakes in a changed folder. Raises OSError, and then changes nothing."""
        listed_ns = self._changed_ns()
        if only_new and listed_ns == self._listed_ns:
            return []
        state = self._stat_files()
        mistakes: list[UserError] = []
        if state != self._state:
            self._owners, mistakes = self._read()
        self._listed_ns, self._state = listed_ns, state
        return mistakes

    def _files(self) -> list[Path]:
        """A missing folder is an empty one: deleting it revokes every key."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        # Hidden files are those of editors.
        own = [name for name in names if name.endswith(keys.PUBLIC_SUFFIX) and not name.startswith(".")]
        return [self._folder / name for name in sorted(own)]

    def _changed_ns(self) -> int:
        """Time of the last added or removed file; 0 for a missing folder."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _stat_files(self) -> FolderState:
        state = []
        for file in self._files():
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue  # deleted since
            state.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        return tuple(state)

    def _read(self) -> tuple[dict[str, Owner], list[UserError]]:
        owners: dict[str, Owner] = {}
        mistakes: list[UserError] = []
        for file in self._files():
            try:
                key, owner = keys.owner(file)
                if key in owners:
                    raise UserError(f"{file} holds the key of {owners[key].name!r}, expected another key")
                check_unowned(str(file), owner, owners)
                owners[key] = owner
            except UserError as mistake:
                mistakes.append(mistake)
        return owners, mistakes


def check_unowned(where: str, owner: Owner, owners: Mapping[str, Owner]) -> None:
    """Raise UserError when another key owns one of an owner's clients. where: start of the message."""
    for other in owners.values():
        if keys.INJECTOR in (owner.name, other.name):
            continue  # it forwards the messages of all clients, and checks their keys itself
        shared = owner.clients.shared_with(other.clients)
        if shared is not None:
            raise UserError(
                f"{where}: client {shared} belongs to {other.name!r} already; revoke that key, or take other ids"
            )


def _log_changes(change: str, owners: Mapping[str, Owner]) -> None:
    if owners:
        log.info("keys %s: %s", change, ", ".join(owner.name for owner in owners.values()))
