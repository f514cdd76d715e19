"""Creates and revokes keys: the actions of `unstale keys` on a folder with the layout of `net.authorized_keys`."""

import os
from collections.abc import Mapping
from pathlib import Path

import zmq

from unstale.errors import UserError
from unstale.net.authorized_keys import ADMITTED, INJECTOR, SERVER, AuthorizedKeys, ClientIds, Owner, check_unowned
from unstale_client.net import keys
from unstale_client.net.keys import PUBLIC_SUFFIX, SECRET_SUFFIX, cause


def create(folder: Path, name: str, clients: ClientIds | None) -> None:
    """Create the files of a new key pair. clients: that it owns; None for the server's own.

    Raises UserError for an existing name, for a missing key of the server, and for a file that cannot be written.
    """
    files = _new_files(folder, name, clients)
    for file in files:
        if file.exists():
            raise UserError(f"{file} already exists; choose another name, or run unstale keys revoke {name} first")
    if clients is not None:
        check_unowned("--clients", Owner(name, clients), AuthorizedKeys(folder / ADMITTED).owners)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ADMITTED).mkdir(mode=0o700, exist_ok=True)
        for file, text in files.items():
            mode = 0o600 if file.suffix == SECRET_SUFFIX else 0o644
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(fd, "w", encoding="ascii") as opened:
                opened.write(text)
    except OSError as error:
        raise UserError(f"no key can be written to {folder}: {cause(error)}") from None


def revoke(folder: Path, name: str) -> None:
    """Revoke a key and delete its files. Raises UserError if there is none."""
    admitted = folder / ADMITTED / f"{name}{PUBLIC_SUFFIX}"
    try:
        admitted.unlink()  # first, because it authorizes the key
        for suffix in (PUBLIC_SUFFIX, SECRET_SUFFIX):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    except FileNotFoundError:
        raise UserError(f"{admitted} does not exist; unstale keys show lists the authorized keys") from None
    except OSError as error:
        raise UserError(f"cannot delete {error.filename}: {cause(error)}") from None


def _new_files(folder: Path, name: str, clients: ClientIds | None) -> dict[Path, str]:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    metadata = {"name": name} if clients is None else {"name": name, "clients": clients.text}
    server = {} if name == SERVER else {"server-key": _server_key(folder)}
    files = {folder / f"{name}{SECRET_SUFFIX}": _text(metadata | server, public, secret)}
    if name in (SERVER, INJECTOR):
        files[folder / f"{name}{PUBLIC_SUFFIX}"] = _text({"name": name}, public)
    if clients is not None:
        files[folder / ADMITTED / f"{name}{PUBLIC_SUFFIX}"] = _text(metadata, public)
    return files


def _server_key(folder: Path) -> str:
    """Every secret file holds it, so that its owner needs no other file."""
    file = folder / f"{SERVER}{PUBLIC_SUFFIX}"
    if not file.exists():
        raise UserError(f"{file} does not exist; create the server's key first: unstale keys new {SERVER}")
    return keys.public_key(file, "the server's key")


def _text(metadata: Mapping[str, str], public: str, secret: str | None = None) -> str:
    title = "a public key" if secret is None else "a SECRET key, for its owner alone"
    lines = [f"# unstale: {title}", "metadata", *(f'    {name} = "{text}"' for name, text in metadata.items())]
    lines += ["curve", f'    public-key = "{public}"']
    lines += [] if secret is None else [f'    secret-key = "{secret}"']
    return "\n".join(lines) + "\n"
