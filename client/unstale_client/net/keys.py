"""Key files.

    NAME.key_secret     the key pair of NAME, readable by its owner alone (mode 600)
    NAME.key            a public key

A key is a CURVE key of 32 bytes, written as 40 characters of Z85, in the file format of other ZeroMQ programs
(`zmq.auth`), so that a client in another language can read it.
"""

import logging
import os
import re
import stat
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import zmq
from zmq.utils import z85

from unstale_client.errors import UserError
from unstale_client.setting_names import CONFIGURATION, SettingNames

log = logging.getLogger("unstale.keys")

PUBLIC_SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"
FILE_BYTES_MAX = 64 * 1024  # a key file has a few hundred

_NAME = re.compile(r"[a-z-]+")
_QUOTES = ('"', "'")


@dataclass(frozen=True, slots=True)
class Identity:
    """Keys of a process, in Z85. server: public key of the server that it connects to; None for a server."""

    public: str
    secret: str = field(repr=False)  # not in logs
    server: str | None = field(repr=False)


def identity(file: Path, setting: str) -> Identity:
    """Read a key pair. Raises UserError for a file that is missing, readable by others, or of another kind.

    setting: configuration key of the file.
    """
    where = f"{setting} {str(file)!r}"
    fields = read_fields(file, where, secret=True)
    public, secret = key_in(fields, "public-key", where), key_in(fields, "secret-key", where)
    if zmq.curve_public(secret.encode()).decode() != public:
        raise UserError(f"{where}: its secret key does not belong to its public key; make a new pair")
    server = key_in(fields, "server-key", where) if "server-key" in fields else None
    return Identity(public, secret, server)


def client_identity(file: str | None, server_file: str | None, names: SettingNames = CONFIGURATION) -> Identity | None:
    """Read the key files of a client: its own, and the server's. None in plain text. Raises UserError."""
    if file is None:
        if server_file is not None:
            raise UserError(f"{names.server_key} is {server_file!r}, expected {names.key} too")
        return None
    own = identity(Path(file), names.key)
    if server_file is not None:
        return replace(own, server=public_key(Path(server_file), names.server_key))
    if own.server is None:
        raise UserError(f"{names.key} {file!r} does not name its server, expected {names.server_key} too")
    return own


def public_key(file: Path, setting: str) -> str:
    """Read a public key file. setting: as in `identity`. Raises UserError."""
    where = f"{setting} {str(file)!r}"
    return key_in(read_fields(file, where, secret=False), "public-key", where)


def read_fields(file: Path, where: str, *, secret: bool) -> dict[str, str]:
    """The fields of a file, by name. Raises UserError.

    where: start of its message. secret: whether the file holds a secret key, so that others must not have access.
    """
    expected = f"a file NAME{SECRET_SUFFIX if secret else PUBLIC_SUFFIX} of `unstale keys new`"
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
    return _checked(content, where, expected, secret=secret)


def _checked(content: bytes, where: str, expected: str, *, secret: bool) -> dict[str, str]:
    fields = dict(filter(None, map(_field, content.decode("ascii", "replace").splitlines())))
    if len(content) > FILE_BYTES_MAX or "public-key" not in fields:
        raise UserError(f"{where} is not a key file, expected {expected}")
    if secret and "secret-key" not in fields:
        raise UserError(f"{where} holds no secret key, expected {expected}")
    if not secret and "secret-key" in fields:
        raise UserError(f"{where} holds a secret key, for its owner alone; expected a public key, NAME{PUBLIC_SUFFIX}")
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


def key_in(fields: Mapping[str, str], name: str, where: str) -> str:
    """The key in a field. Raises UserError."""
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
