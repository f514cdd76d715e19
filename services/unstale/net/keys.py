"""Key files.

    FOLDER/NAME.key_secret      the key pair of NAME, readable by its owner alone (mode 600)
    FOLDER/NAME.key             the public key of a `server` or `injector`
    FOLDER/admitted/NAME.key    a public key that may connect, and the clients that it owns

A key is a CURVE key of 32 bytes, written as 40 characters of Z85, in the file format of other ZeroMQ programs
(`zmq.auth`), so that a client in another language can read it.
"""

import os
import re
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import zmq
from zmq.utils import z85

from unstale.errors import UserError
from unstale_proto.limits import CLIENTS_MAX

SERVER, INJECTOR = "server", "injector"  # names of the keys of processes that others connect to
ADMITTED = "admitted"
PUBLIC_SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"
FILE_BYTES_MAX = 64 * 1024  # a key file has a few hundred
EVERY_CLIENT = "all"

_NAME = re.compile(r"[a-z-]+")
_QUOTES = ('"', "'")
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
class Identity:
    """Keys of a process, in Z85. server: public key of the server that it connects to; None for a server."""

    public: str
    secret: str
    server: str | None

    def __repr__(self) -> str:
        return f"Identity(public={self.public!r})"  # no secret in logs


@dataclass(frozen=True, slots=True)
class Owner:
    """Name of a public key, and the clients that it owns."""

    name: str
    clients: ClientIds


def identity(file: Path, setting: str) -> Identity:
    """Read a key pair. Raises UserError for a file that is missing, readable by others, or of another kind.

    setting: configuration key of the file.
    """
    where = f"{setting} {str(file)!r}"
    fields = _fields(file, where, f"a file NAME{SECRET_SUFFIX} of `unstale keys new`", secret=True)
    if "secret-key" not in fields:
        raise UserError(f"{where} holds no secret key, expected a file NAME{SECRET_SUFFIX} of `unstale keys new`")
    public, secret = _key(fields, "public-key", where), _key(fields, "secret-key", where)
    if zmq.curve_public(secret.encode()).decode() != public:
        raise UserError(f"{where}: its secret key does not belong to its public key; make a new pair")
    server = _key(fields, "server-key", where) if "server-key" in fields else None
    return Identity(public, secret, server)


def client_identity(file: str | None, server_file: str | None) -> Identity | None:
    """Read the files of client.key and client.server_key; None in plain text. Raises UserError."""
    if file is None:
        if server_file is not None:
            raise UserError(f"client.server_key is {server_file!r}, expected client.key too")
        return None
    own = identity(Path(file), "client.key")
    if server_file is not None:
        return replace(own, server=public_key(Path(server_file), "client.server_key"))
    if own.server is None:
        raise UserError(f"client.key {file!r} does not name its server, expected client.server_key too")
    return own


def public_key(file: Path, setting: str) -> str:
    """Read a public key file. setting: as in `identity`. Raises UserError."""
    where = f"{setting} {str(file)!r}"
    return _key(_public_fields(file, where), "public-key", where)


def owner(file: Path) -> tuple[str, Owner]:
    """Read a file of the folder `admitted`: a public key and its owner. Raises UserError."""
    where = str(file)
    fields = _public_fields(file, where)
    if "clients" not in fields:
        raise UserError(f'{where} does not name the clients of its key, expected a line like clients = "0-9"')
    clients = ClientIds.parse(fields["clients"], f"{where}: clients")
    return _key(fields, "public-key", where), Owner(file.name.removesuffix(PUBLIC_SUFFIX), clients)


def _public_fields(file: Path, where: str) -> dict[str, str]:
    fields = _fields(file, where, f"a file NAME{PUBLIC_SUFFIX} of `unstale keys new`", secret=False)
    if "secret-key" in fields:
        raise UserError(f"{where} holds a secret key, for its owner alone; expected a public key, NAME{PUBLIC_SUFFIX}")
    return fields


def _fields(file: Path, where: str, expected: str, *, secret: bool) -> dict[str, str]:
    """The fields of a file, by name. secret: other users must not have access."""
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if secret and mode & 0o077 and sys.platform != "win32":  # modes mean nothing there
                raise UserError(
                    f"{where} has mode {mode:o}, so that others can use it, expected 600; run chmod 600 {file}"
                )
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UserError(f"{where} does not exist, expected {expected}") from None
    except OSError as error:
        raise UserError(f"{where} cannot be read ({cause(error)})") from None
    fields = dict(filter(None, map(_field, content.decode("ascii", "replace").splitlines())))
    if len(content) > FILE_BYTES_MAX or "public-key" not in fields:
        raise UserError(f"{where} is not a key file, expected {expected}")
    return fields


def _field(line: str) -> tuple[str, str] | None:
    """Name and value of a line `name = "value"`; None for another line."""
    name, equals, value = (part.strip() for part in line.partition("="))
    if value.startswith(_QUOTES):
        value = value[1:]
    if value.endswith(_QUOTES):
        value = value[:-1]
    if not equals or not _NAME.fullmatch(name) or any(quote in value for quote in _QUOTES):
        return None
    return name, value


def _key(fields: Mapping[str, str], name: str, where: str) -> str:
    text = fields[name]
    try:
        if len(z85.decode(text.encode())) == 32 and len(text) == 40:
            return text
    except (ValueError, KeyError, struct.error):
        pass  # reported like a wrong length
    raise UserError(f"{where}: {name} is {text[:80]!r}, expected 40 characters of Z85")


def cause(error: OSError) -> str:
    """The system's description of an error, for a message."""
    return (error.strerror or str(error)).lower()
