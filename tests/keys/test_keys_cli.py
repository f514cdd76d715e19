"""`unstale keys` as a person uses it, and the checks of a configuration for links without keys."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from unstale.cli import main
from unstale.cli.demo import _make_keys
from unstale.config import Settings
from unstale.config.settings import ClientSettings, InjectorSettings, ServerSettings
from unstale.errors import UserError
from unstale.net.authorized_keys import AuthorizedKeys
from unstale_client.net.keys import client_identity, public_key


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UNSTALE_"):
            monkeypatch.delenv(name)


def says(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """The output of a command, or its error."""
    assert main.run(["keys", *arguments]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_keys_are_made_listed_and_revoked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says(capsys, "new", "server") == ("keys/server.key_secret: made; start it with unstale server --keys keys\n")
    assert says(capsys, "show").startswith("keys admits no key yet; make one with unstale keys new NAME --clients 0-9")
    assert says(capsys, "new", "phone", "--clients", "0-9") == (
        "keys/phone.key_secret: made and admitted; copy it safely to the client, "
        "then: unstale client --key phone.key_secret\n"
    )
    assert says(capsys, "new", "injector").endswith("start it with unstale inject --injector.keys keys\n")
    rows = json.loads(says(capsys, "show", "--json"))
    assert [(row["name"], row["clients"]) for row in rows] == [("injector", "all"), ("phone", "0-9")]
    shown = says(capsys, "show").splitlines()
    assert [line.split()[:3] for line in shown] == [["injector", "clients", "all"], ["phone", "clients", "0-9"]]
    assert [line.split()[3] for line in shown] == [row["public_key"] for row in rows]
    assert says(capsys, "revoke", "phone").startswith("phone: revoked; ")
    assert [row["name"] for row in json.loads(says(capsys, "show", "--json"))] == ["injector"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["new", "phone", "--clients", "0"], "keys/server.key does not exist; create the server's key first"),
        (["new", "phone"], "--clients is missing, expected the ids of the clients of this key, such as 3 or 0-9"),
        (["new", "phone", "--clients", "x"], "--clients is 'x', expected client ids below 1,000,000 like 3, 0-9 or"),
        (["new", "server", "--clients", "0"], "--clients is given for the server, which has no clients"),
        (["new", "../phone", "--clients", "0"], "NAME is '../phone', expected letters, digits, dots, dashes"),
        (["new", ".phone", "--clients", "0"], "NAME is '.phone', expected letters"),
        (["revoke", "phone"], "keys/admitted/phone.key does not exist; unstale keys show lists the authorized keys"),
        (["revoke", "../phone"], "NAME is '../phone', expected letters"),
        (["show"], "keys/admitted does not exist, expected the authorized keys; see unstale keys new --help"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = says(capsys, *arguments, code=2)
    assert said.startswith(f"unstale: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://192.0.2.1:5555", "tcp://host:5555"])
def test_beyond_loopback_a_server_without_keys_needs_the_setting_that_allows_it(address: str) -> None:
    for settings in (ServerSettings, InjectorSettings):
        settings(address=address, keys="keys")
        settings(address=address, insecure=True)
        with pytest.raises(ValidationError, match=r"in plain text, expected (server|injector)\.keys, a loopback"):
            settings(address=address)


def test_no_key_protects_the_control_of_an_injector() -> None:
    with pytest.raises(ValidationError, match="where other machines could change the toxics without a key"):
        InjectorSettings(http_address="0.0.0.0:9465", keys="keys")
    InjectorSettings(http_address="0.0.0.0:9465", insecure=True)


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:5555", "tcp://host:5555"])
def test_beyond_loopback_a_client_without_keys_needs_the_setting_that_allows_it(address: str) -> None:
    ClientSettings(server=address, key="phone.key_secret").check_link()
    ClientSettings(server=address, insecure=True).check_link()
    InjectorSettings(upstream=address, keys="keys").check_link()
    InjectorSettings(upstream=address, insecure=True).check_link()
    with pytest.raises(UserError, match=r"^client\.server is .*, on another machine, expected client\.key too, or"):
        ClientSettings(server=address).check_link()
    with pytest.raises(UserError, match=r"^injector\.upstream is .*, expected injector\.keys too, or injector\.in"):
        InjectorSettings(upstream=address).check_link()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:5555", "tcp://localhost:5555", "tcp://[::1]:5555"])
def test_on_loopback_no_keys_are_needed(address: str) -> None:
    ServerSettings(address=address)
    ClientSettings(server=address).check_link()
    InjectorSettings(upstream=address).check_link()


def test_a_server_key_needs_a_client_key() -> None:
    with pytest.raises(UserError, match=r"^client\.server_key is 'x\.key', expected client\.key too"):
        client_identity(None, "x.key")
    assert client_identity(None, None) is None


@pytest.mark.parametrize("scenario", [None, "lte"])
def test_the_demo_makes_a_key_for_each_of_its_processes(scenario: str | None, tmp_path: Path) -> None:
    settings = Settings(clients=5, scenario={"name": scenario})
    given = [dict(pairwise(options)) for options in _make_keys(tmp_path, settings)]
    of_those = [client_identity(one["--key"], one.get("--server-key")) for one in given]
    authorized = AuthorizedKeys(tmp_path / "admitted")
    owned = [[who for who in range(5) if authorized.may_speak(one.public, who)] for one in of_those if one]
    assert owned == [[0, 1], [2, 3, 4]]
    connects_to = "server" if scenario is None else "injector"
    assert {one.server for one in of_those if one} == {public_key(tmp_path / f"{connects_to}.key", "the key")}
