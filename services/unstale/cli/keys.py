"""`unstale keys`: make, list and revoke the keys that a server and an injector admit."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from unstale.cli.app import App
from unstale.errors import UserError

app = App(help="Make, list and revoke keys, so that only those connect whom you let in.")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(
            f"NAME is {name!r}, expected letters, digits, dots, dashes and underscores, at most 64"
        )
    return name


Name = Annotated[
    str,
    typer.Argument(
        help="Whose key: server, injector, or any other name, for a process of clients.", callback=_checked
    ),
]
Folder = Annotated[Path, typer.Option(help="Where the keys are.")]
Clients = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Clients that it owns: 3, 0-9, 0-4,7 or all. An injector: all."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def new(name: Name, clients: Clients = None, folder: Folder = Path("keys")) -> None:
    """Make a key pair, and admit it for some clients. The server's own comes first."""
    from unstale.net import keygen, keys

    secret = folder / f"{name}{keys.SECRET_SUFFIX}"
    if name == keys.SERVER:
        if clients is not None:
            raise UserError("--clients is given for the server, which speaks for none, expected none")
        keygen.create(folder, name, None)
        print(f"{secret}: made; start it with unstale server --keys {folder}")
        return
    if clients is None and name != keys.INJECTOR:
        raise UserError("--clients is not given, expected the ids that this key owns, like 3 or 0-9")
    owned = keys.ClientIds.parse(clients or keys.EVERY_CLIENT, "--clients")
    keygen.create(folder, name, owned)
    if name == keys.INJECTOR:
        print(f"{secret}: made and admitted; start it with unstale inject --injector.keys {folder}")
    else:
        print(f"{secret}: made and admitted; take it there safely, then: unstale client --key {secret.name}")


@app.command()
def show(folder: Folder = Path("keys"), as_json: AsJson = False) -> None:
    """List the keys that are admitted, and their clients."""
    from unstale.net import keys
    from unstale.net.authorized_keys import AuthorizedKeys

    admitted = AuthorizedKeys(folder / keys.ADMITTED).owners
    if as_json:
        rows = [
            {"name": owner.name, "clients": owner.clients.text, "public_key": key}
            for key, owner in admitted.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    for key, owner in admitted.items():
        print(f"{owner.name:<20} clients {owner.clients.text:<12} {key}")
    if not admitted:
        print(f"{folder} admits nobody yet; unstale keys new NAME --clients 0-9 makes a key that it does")


@app.command()
def revoke(name: Name, folder: Folder = Path("keys")) -> None:
    """Admit a key no longer. What is connected with it is refused from its next message on."""
    from unstale.net import keygen

    keygen.revoke(folder, name)
    print(f"{name}: revoked; a server that runs with {folder} refuses it within a second")
