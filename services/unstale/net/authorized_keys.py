"""The folder of a server's keys: its own pair, and the public keys that may connect.

    FOLDER/NAME.key_secret      the key pair of NAME
    FOLDER/NAME.key             the public key of a `server` or `injector`
    FOLDER/admitted/NAME.key    a public key that may connect, and the clients that it owns

`AuthorizedKeys` reads the folder `admitted` again whenever it changes.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unstale.errors import UserError
from unstale_client.net.keys import PUBLIC_SUFFIX, cause, key_in, read_fields
from unstale_proto.limits import CLIENTS_MAX

log = logging.getLogger("unstale.keys")

SERVER, INJECTOR = "server", "injector"  # names of the keys of processes that others connect to
ADMITTED = "admitted"
EVERY_CLIENT = "all"

_IDS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class ClientIds:
    """Ids of clients, as ranges. text: `0-9,12`, or `all`."""

    text: str
    ranges: tuple[range, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> "ClientIds":
        """Raises UserError. where: start of its message, such as `--clients`."""
        if text == EVERY_CLIENT:
            return cls(text, (range(CLIENTS_MAX),))
        ranges = []
        for part in text.split(","):
            match = _IDS.fullmatch(part.strip())
            ids = range(0) if match is None else range(int(match[1]), int(match[2] or match[1]) + 1)
            if not ids or ids[-1] >= CLIENTS_MAX:
                raise UserError(
                    f"{where} is {text[:80]!r}, expected client ids below {CLIENTS_MAX:,} like 3, 0-9 or 0-4,7, or all"
                )
            ranges.append(ids)
        return cls(text, tuple(ranges))

    def __contains__(self, client_id: int) -> bool:
        return any(client_id in ids for ids in self.ranges)

    def shared_with(self, other: "ClientIds") -> int | None:
        """The lowest id in both, or None."""
        both = [max(a[0], b[0]) for a in self.ranges for b in other.ranges if a[0] <= b[-1] and b[0] <= a[-1]]
        return min(both, default=None)


@dataclass(frozen=True, slots=True)
class Owner:
    """Name of a public key, and the clients that it owns."""

    name: str
    clients: ClientIds


def read_owner(file: Path) -> tuple[str, Owner]:
    """Read a file of the folder `admitted`: a public key and its owner. Raises UserError."""
    where = str(file)
    fields = read_fields(file, where, secret=False)
    if "clients" not in fields:
        raise UserError(f'{where} does not name the clients of its key, expected a line like clients = "0-9"')
    clients = ClientIds.parse(fields["clients"], f"{where}: clients")
    return key_in(fields, "public-key", where), Owner(file.name.removesuffix(PUBLIC_SUFFIX), clients)


FolderState = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size and times of each file."""


class AuthorizedKeys:
    """Reads the folder; raises UserError for a mistake in it. One thread calls `refresh`, any thread the other methods.

    A file that becomes invalid later authorizes no key, with a warning. Of two keys that own one client, the
    injector's aside, the one whose file comes first in the alphabet is authorized.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.owners: Mapping[str, Owner] = {}  # by public key, in the order of their names
        self._unreadable = False
        self._listed_ns = 0
        self._state: FolderState | None = None
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist, expected the authorized keys; see unstale keys new --help")
        try:
            mistakes = self._read_if_changed(only_new=False)
        except OSError as error:
            raise UserError(f"{folder} cannot be read ({cause(error)})") from None
        if mistakes:
            raise mistakes[0]

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether a public key owns a client."""
        owner = self.owners.get(key or "")
        return owner is not None and client_id in owner.clients

    def refresh(self, *, only_new: bool = False) -> None:
        """Read the folder again if it has changed; keep the keys if it cannot be read.

        only_new: check for added and removed files only, at a cost that does not grow with their number.
        """
        before = self.owners
        try:
            mistakes = self._read_if_changed(only_new=only_new)
        except OSError as error:
            if not self._unreadable:
                log.warning("%s cannot be read now (%s); retrying", self._folder, cause(error))
            self._unreadable = True
            return
        self._unreadable = False
        for mistake in mistakes:
            log.warning("%s; the file is ignored", mistake)
        _log_changes("admitted", {key: owner for key, owner in self.owners.items() if key not in before})
        _log_changes("revoked", {key: owner for key, owner in before.items() if key not in self.owners})

    def _read_if_changed(self, *, only_new: bool) -> list[UserError]:
        """Returns the mistakes in a changed folder. Raises OSError, and then changes nothing."""
        try:
            listed_ns = self._folder.stat().st_mtime_ns  # time of the last added or removed file
        except FileNotFoundError:
            listed_ns = 0
        if only_new and listed_ns == self._listed_ns:
            return []
        state = self._stat_files()
        mistakes: list[UserError] = []
        if state != self._state:
            self.owners, mistakes = self._read()
        self._listed_ns, self._state = listed_ns, state
        return mistakes

    def _files(self) -> list[Path]:
        """A missing folder is an empty one: deleting it revokes every key."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        # Hidden files are those of editors.
        own = [name for name in names if name.endswith(PUBLIC_SUFFIX) and not name.startswith(".")]
        return [self._folder / name for name in sorted(own)]

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
                key, owner = read_owner(file)
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
        if INJECTOR in (owner.name, other.name):
            continue  # it forwards the messages of all clients, and checks their keys itself
        shared = owner.clients.shared_with(other.clients)
        if shared is not None:
            raise UserError(
                f"{where}: client {shared} belongs to {other.name!r} already; revoke that key, or take other ids"
            )


def _log_changes(change: str, owners: Mapping[str, Owner]) -> None:
    if owners:
        log.info("keys %s: %s", change, ", ".join(owner.name for owner in owners.values()))
