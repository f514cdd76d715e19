"""Key files are replaced atomically and parsed strictly; an invalid file raises a UserError of one sentence."""

import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from unstale.errors import UserError
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client.net import keys


def test_a_pair_is_made_that_other_zeromq_programs_can_read(folder: Path) -> None:
    public, secret = zmq.auth.load_certificate(folder / "phone.key_secret")
    assert secret is not None
    assert zmq.curve_public(secret) == public
    assert zmq.auth.load_certificate(folder / "admitted/phone.key") == (public, None)
    assert keys.identity(folder / "phone.key_secret", "client.key").public == public.decode()


def test_a_pair_of_another_zeromq_program_can_be_read(tmp_path: Path) -> None:
    _, file = zmq.auth.create_certificates(tmp_path, "other")
    os.chmod(file, 0o600)
    identity = keys.identity(Path(file), "client.key")
    assert identity.server is None
    assert zmq.curve_public(identity.secret.encode()).decode() == identity.public


def test_only_its_owner_can_read_a_secret_key_from_the_first_moment(folder: Path) -> None:
    for file in folder.glob("*.key_secret"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "secret" not in (folder / "server.key").read_text().lower()
    assert "secret" not in (folder / "admitted/phone.key").read_text().lower()


def test_a_client_knows_the_server_by_its_own_file(folder: Path) -> None:
    phone = keys.client_identity(str(folder / "phone.key_secret"), None)
    assert phone is not None
    assert phone.server == keys.public_key(folder / "server.key", "client.server_key")
    assert keys.identity(folder / "server.key_secret", "server.keys").server is None


def test_a_given_file_replaces_the_default_server_key(folder: Path) -> None:
    keygen.create(folder, "injector", ClientIds.parse("all", "--clients"))
    phone = keys.client_identity(str(folder / "phone.key_secret"), str(folder / "injector.key"))
    assert phone is not None
    assert phone.server == keys.public_key(folder / "injector.key", "client.server_key")


def test_a_secret_key_is_in_no_log(folder: Path) -> None:
    identity = keys.identity(folder / "phone.key_secret", "client.key")
    assert identity.secret not in f"{identity} {identity!r}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o777])
def test_a_secret_key_that_others_can_use_is_refused(mode: int, folder: Path) -> None:
    file = folder / "phone.key_secret"
    file.chmod(mode)
    with pytest.raises(UserError) as refused:
        keys.identity(file, "client.key")
    assert str(refused.value) == (
        f"client.key '{file}' has mode {mode:o}, so that others can use it, expected 600; run chmod 600 {file}"
    )


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_key_that_only_its_owner_can_use_is_accepted(mode: int, folder: Path) -> None:
    file = folder / "phone.key_secret"
    file.chmod(mode)
    assert keys.identity(file, "client.key").server is not None


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_a_file_that_is_no_secret_key_has_its_own_error(folder: Path, tmp_path: Path) -> None:
    good = (folder / "phone.key_secret").read_text()
    other = zmq.curve_keypair()[1].decode()
    secret = keys.identity(folder / "phone.key_secret", "client.key").secret
    public_file = folder / "server.key"
    public_file.chmod(0o600)
    cases = {
        tmp_path / "gone": "does not exist, expected a file NAME.key_secret of `unstale keys new`",
        tmp_path: "cannot be read (is a directory)",
        written(tmp_path / "empty", ""): "is not a key file, expected a file NAME.key_secret of `unstale keys new`",
        written(tmp_path / "binary", "\0\1\2"): "is not a key file, expected a file NAME.key_secret",
        written(tmp_path / "long", good + "#" * keys.FILE_BYTES_MAX): "is not a key file, expected a file",
        public_file: "holds no secret key, expected a file NAME.key_secret of `unstale keys new`",
        written(tmp_path / "short", good.replace(secret, secret[:-1])): "secret-key is '",
        written(tmp_path / "no z85", good.replace(secret, "~" * 40)): f"secret-key is '{'~' * 40}', expected 40",
        written(tmp_path / "too big", good.replace(secret, "#" * 40)): "expected 40 characters of Z85",
        written(tmp_path / "mixed", good.replace(secret, other)): "does not belong to its public key; make a new",
    }  # fmt: skip
    for file, sentence in cases.items():
        with pytest.raises(UserError) as refused:
            keys.identity(file, "client.key")
        assert str(refused.value).startswith(f"client.key '{file}'"), sentence
        assert sentence in str(refused.value)


def test_lines_that_say_nothing_of_a_key_are_passed_over_however_long_they_are(folder: Path, tmp_path: Path) -> None:
    text = (folder / "server.key").read_text()
    odd = tmp_path / "server.key"
    odd.write_text(f"{text}note = a{' ' * 60_000}\"b\n=\nno equals\n'x' = 'y'\n")  # not a field: a quote within
    assert keys.public_key(odd, "setting") == keys.public_key(folder / "server.key", "setting")


@pytest.mark.parametrize("line", ["public-key = {}", "  public-key='{}'", 'public-key  =  "{}"  ', 'public-key=\t{}"'])
def test_a_field_may_be_written_in_many_ways(folder: Path, tmp_path: Path, line: str) -> None:
    key = keys.public_key(folder / "server.key", "setting")
    (tmp_path / "x.key").write_text(line.format(key))
    assert keys.public_key(tmp_path / "x.key", "setting") == key


def test_a_secret_key_in_place_of_a_public_one_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^client.server_key '.*' holds a secret key, for its owner alone"):
        keys.client_identity(str(folder / "phone.key_secret"), str(folder / "server.key_secret"))


def test_a_pair_that_is_for_no_server_cannot_connect(folder: Path) -> None:
    with pytest.raises(UserError, match=r"does not name its server, expected client.server_key too$"):
        keys.client_identity(str(folder / "server.key_secret"), None)


def test_no_key_is_written_over_another(folder: Path) -> None:
    before = {file: file.read_text() for file in folder.rglob("*.key*")}
    for name in ("server", "phone"):
        with pytest.raises(UserError, match=rf"{name}\.key_secret already exists; choose another name, or run unstale"):
            keygen.create(folder, name, None if name == "server" else ClientIds.parse("7", "--clients"))
    (folder / "phone.key_secret").unlink()  # taken to its owner
    with pytest.raises(UserError, match=r"admitted/phone\.key already exists"):
        keygen.create(folder, "phone", ClientIds.parse("7", "--clients"))
    assert {file: file.read_text() for file in folder.rglob("*.key*")} == {
        file: text for file, text in before.items() if file.name != "phone.key_secret"
    }


def test_without_the_servers_key_no_other_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"server\.key does not exist; create the server's key first: unstale keys new"):
        keygen.create(tmp_path / "keys", "phone", ClientIds.parse("0", "--clients"))
    assert not (tmp_path / "keys").exists()


def test_a_client_that_belongs_to_another_key_is_given_to_no_second_one(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^--clients: client 1 belongs to 'phone' already; revoke that key, or take"):
        keygen.create(folder, "tablet", ClientIds.parse("1", "--clients"))
    assert not (folder / "tablet.key_secret").exists()
    keygen.revoke(folder, "phone")
    keygen.create(folder, "tablet", ClientIds.parse("0-1", "--clients"))


def test_a_revoked_key_leaves_nothing_behind(folder: Path) -> None:
    keygen.revoke(folder, "phone")
    assert not list(folder.rglob("phone*"))
    with pytest.raises(UserError, match=r"admitted/phone\.key does not exist; unstale keys show lists the"):
        keygen.revoke(folder, "phone")


def test_a_folder_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^no key can be written to .*/file/keys: not a directory$"):
        keygen.create(tmp_path / "file/keys", "server", None)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("3", [3], [2, 4, -1]),
        ("0-9", [0, 5, 9], [10]),
        ("0-4,7", [0, 4, 7], [5, 6, 8]),
        ("0-4, 7", [4, 7], [5]),
        ("all", [0, 999_999], [-1, 1_000_000]),
    ],
)
def test_ids_are_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    ids = ClientIds.parse(text, "--clients")
    assert [one in ids for one in inside] == [True] * len(inside)
    assert [one in ids for one in outside] == [False] * len(outside)


@pytest.mark.parametrize("text", ["", "-1", "5-3", "a", "1,,2", "1-", "1000000", "0-1000000", "٣", "1 2", "0x1"])
def test_an_invalid_id_is_reported(text: str) -> None:
    with pytest.raises(UserError, match=r"^--clients is .*, expected client ids below 1,000,000 like 3, 0-9"):
        ClientIds.parse(text, "--clients")


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [("0-4", "5-9", None), ("0-4", "4-9", 4), ("0-9", "3", 3), ("1,3,5", "0,2,4", None), ("all", "7", 7)],
)
def test_ids_that_two_have_are_found(one: str, other: str, shared: int | None) -> None:
    left, right = ClientIds.parse(one, "--clients"), ClientIds.parse(other, "--clients")
    assert left.shared_with(right) == right.shared_with(left) == shared
