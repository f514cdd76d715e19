"""Keys made and revoked: what `unstale keys` does to a folder. The layout is in `net.keys`."""

import os
from collections.abc import Mapping
from pathlib import Path

import zmq

from unstale.errors import UserError
from unstale.net.authorized_keys import AuthorizedKeys, check_unowned
from unstale.net.keys import (
    ADMITTED,
    INJECTOR,
    PUBLIC_SUFFIX,
    SECRET_SUFFIX,
    SERVER,
    ClientIds,
    Owner,
    public_key,
)


def create(folder: Path, name: str, clients: ClientIds | None) -> None:
    """A new key pair and its files. clients: that it owns; None for the server's own.

    Raises UserError when there is such a key, when the server's is still to be made, or a file cannot be written.
    """
    own = folder / f"{name}{SECRET_SUFFIX}"
    about = {"name": name} if clients is None else {"name": name, "clients": clients.text}
    public, secret = (key.decode() for key in zmq.curve_keypair())
    files = {own: _text(about | _server(folder, name), public, secret)}
    if name in (SERVER, INJECTOR):
        files[folder / f"{name}{PUBLIC_SUFFIX}"] = _text({"name": name}, public)
    if clients is not None:
        files[folder / ADMITTED / f"{name}{PUBLIC_SUFFIX}"] = _text(about, public)
    for file in files:
        if file.exists():
            raise UserError(
                f"{file} exists already; take another name, or first run unstale keys revoke {name}"
            )
    if clients is not None:
        check_unowned("--clients", Owner(name, clients), AuthorizedKeys(folder / ADMITTED).owners)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ADMITTED).mkdir(mode=0o700, exist_ok=True)
        for file, text in files.items():
            mode = 0o600 if file.suffix == SECRET_SUFFIX else 0o644
            with open(
                os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii"
            ) as opened:
                opened.write(text)
    except OSError as error:
        raise UserError(
            f"no key can be written to {folder}: {(error.strerror or str(error)).lower()}"
        ) from None


def revoke(folder: Path, name: str) -> None:
    """Admit a key no longer, and delete its files. Raises UserError when there is none."""
    admitted = folder / ADMITTED / f"{name}{PUBLIC_SUFFIX}"
    try:
        admitted.unlink()  # first: from here on nobody is let in with it
        for suffix in (PUBLIC_SUFFIX, SECRET_SUFFIX):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    except FileNotFoundError:
        raise UserError(
            f"{admitted} is not there; unstale keys show lists the keys that are admitted"
        ) from None
    except OSError as error:
        raise UserError(f"cannot delete {error.filename}: {(error.strerror or str(error)).lower()}") from None


def _server(folder: Path, name: str) -> dict[str, str]:
    """What a secret file says of the server's key, so that its owner needs no other file."""
    if name == SERVER:
        return {}
    file = folder / f"{SERVER}{PUBLIC_SUFFIX}"
    if not file.exists():
        raise UserError(f"{file} is not there; make the server's key first: unstale keys new {SERVER}")
    return {"server-key": public_key(file, "the server's key")}


def _text(about: Mapping[str, str], public: str, secret: str | None = None) -> str:
    title = "a public key" if secret is None else "a SECRET key, for its owner alone"
    lines = [f"# unstale: {title}", "metadata", *(f'    {name} = "{text}"' for name, text in about.items())]
    lines += ["curve", f'    public-key = "{public}"']
    lines += [] if secret is None else [f'    secret-key = "{secret}"']
    return "\n".join(lines) + "\n"
