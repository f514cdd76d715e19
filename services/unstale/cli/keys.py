"""`unstale keys`: make, list and revoke keys."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.app import App
from unstale.cli.parameters import AsJson
from unstale.errors import UserError

app = App(help="Make, list and revoke the keys of processes that may connect.")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(
            f"NAME is {name!r}, expected letters, digits, dots, dashes and underscores, at most 64; choose another"
        )
    return name


Name = Annotated[
    str,
    typer.Argument(
        help="Owner of the key: server, injector, or another name for a process of clients.", callback=_checked
    ),
]
Folder = Annotated[Path, typer.Option(help="Folder of the keys.")]
Clients = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Clients of the owner, such as 3, 0-9, 0-4,7 or all. For an injector: all."),
]


@app.command()
def new(name: Name, clients: Clients = None, folder: Folder = Path("keys")) -> None:
    """Make a key pair, and admit it for some clients. Make the key of the server first."""
    from unstale.net import authorized_keys, keygen
    from unstale_client.net import keys

    secret = folder / f"{name}{keys.SECRET_SUFFIX}"
    if name == authorized_keys.SERVER:
        if clients is not None:
            raise UserError("--clients is given for the server, which has no clients; leave it out")
        keygen.create(folder, name, None)
        print(f"{secret}: made; start it with unstale server --keys {folder}")
        return
    if clients is None and name != authorized_keys.INJECTOR:
        raise UserError("--clients is missing, expected the ids of the clients of this key, such as 3 or 0-9")
    owned = authorized_keys.ClientIds.parse(clients or authorized_keys.EVERY_CLIENT, "--clients")
    keygen.create(folder, name, owned)
    if name == authorized_keys.INJECTOR:
        print(f"{secret}: made and admitted; start it with unstale inject --injector.keys {folder}")
    else:
        print(f"{secret}: made and admitted; copy it safely to the client, then: unstale client --key {secret.name}")


@app.command()
def show(folder: Folder = Path("keys"), as_json: AsJson = False) -> None:
    """List the keys that are admitted, and their clients."""
    from unstale.net.authorized_keys import ADMITTED, AuthorizedKeys

    admitted = AuthorizedKeys(folder / ADMITTED).owners
    if as_json:
        rows = [
            {"name": owner.name, "clients": owner.clients.text, "public_key": key} for key, owner in admitted.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    for key, owner in admitted.items():
        print(f"{owner.name:<20} clients {owner.clients.text:<12} {key}")
    if not admitted:
        print(f"{folder} admits no key yet; make one with unstale keys new NAME --clients 0-9")


@app.command()
def revoke(name: Name, folder: Folder = Path("keys")) -> None:
    """Revoke a key. The server refuses its connections from their next message on."""
    from unstale.net import keygen

    keygen.revoke(folder, name)
    print(f"{name}: revoked; a running server that uses {folder} refuses it within a second")
