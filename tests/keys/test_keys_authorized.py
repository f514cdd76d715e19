"""The folder of admitted keys: strict at the first read, and no later error admits more keys."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from unstale.errors import UserError
from unstale.net import keygen
from unstale.net.authorized_keys import AuthorizedKeys, ClientIds
from unstale_client.net.keys import Identity

IdentityOf = Callable[[str], Identity]


def names(authorized: AuthorizedKeys) -> list[str]:
    return [owner.name for owner in authorized.owners.values()]


def test_a_key_authorizes_its_own_clients_only(folder: Path, identity_of: IdentityOf) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    phone, laptop = identity_of("phone").public, identity_of("laptop").public
    assert [authorized.may_speak(phone, one) for one in range(4)] == [True, True, False, False]
    assert [authorized.may_speak(laptop, one) for one in range(4)] == [False, False, True, False]
    for unadmitted in (None, "", identity_of("server").public):
        assert not any(authorized.may_speak(unadmitted, one) for one in range(4))


def test_keys_are_added_and_removed_while_the_folder_is_in_use(
    folder: Path, identity_of: IdentityOf, caplog: pytest.LogCaptureFixture
) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    phone = identity_of("phone").public
    with caplog.at_level(logging.INFO):
        keygen.create(folder, "tablet", ClientIds.parse("3", "--clients"))
        keygen.revoke(folder, "phone")
        assert authorized.may_speak(phone, 0)  # until it is read again
        authorized.refresh()
    assert names(authorized) == ["laptop", "tablet"]
    assert not authorized.may_speak(phone, 0)
    assert [record.message for record in caplog.records] == ["keys admitted: tablet", "keys revoked: phone"]
    caplog.clear()
    authorized.refresh()
    assert not caplog.records


@pytest.mark.parametrize("only_new", [False, True])
def test_a_new_file_is_detected_either_way(only_new: bool, folder: Path) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    os.utime(folder / "admitted", (0, 0))  # a folder's own time may be too coarse for a test
    authorized.refresh(only_new=True)
    keygen.create(folder, "tablet", ClientIds.parse("3", "--clients"))
    authorized.refresh(only_new=only_new)
    assert names(authorized) == ["laptop", "phone", "tablet"]


def test_a_file_that_was_edited_is_read_again(folder: Path, identity_of: IdentityOf) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    file = folder / "admitted/phone.key"
    file.write_text(file.read_text().replace('"0-1"', '"3,4"'))
    authorized.refresh()
    assert [authorized.may_speak(identity_of("phone").public, one) for one in range(5)] == [False] * 3 + [True] * 2


def test_a_missing_folder_admits_no_key(folder: Path) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    shutil.rmtree(folder / "admitted")
    authorized.refresh()
    assert not authorized.owners


def test_a_folder_that_cannot_be_read_for_a_while_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authorized = AuthorizedKeys(folder / "admitted")

    def fails(_: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", fails)
    authorized.refresh()
    authorized.refresh()
    assert names(authorized) == ["laptop", "phone"]
    (record,) = caplog.records  # once
    assert record.message == f"{folder}/admitted cannot be read now (permission denied); retrying"


Wrong = tuple[str, Callable[[str, str], str], str]
WRONG: list[Wrong] = [
    ("empty", lambda *_: "", "is not a key file, expected a file NAME.key of `unstale keys new`"),
    ("no ids", lambda text, _: text.replace("clients", "client"), "does not name the clients of its key"),
    ("no range", lambda text, _: text.replace("0-1", "1-0"), "clients is '1-0', expected client ids below"),
    ("twice", lambda text, _: text, "holds the key of 'phone', expected another key"),
    ("secret", lambda _, secret: secret, "holds a secret key, for its owner alone"),
    (
        "taken",
        lambda text, _: text.replace(text.split('"')[-2], "0" * 40),
        "client 0 belongs to 'phone' already; revoke that key, or take other ids",
    ),
]


@pytest.mark.parametrize(("text_of", "sentence"), [wrong[1:] for wrong in WRONG], ids=[wrong[0] for wrong in WRONG])
def test_a_wrong_file_is_reported_at_the_start_and_admits_no_key_later(
    text_of: Callable[[str, str], str], sentence: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authorized = AuthorizedKeys(folder / "admitted")
    good, secret = (folder / "admitted/phone.key").read_text(), (folder / "phone.key_secret").read_text()
    (folder / "admitted/z.key").write_text(text_of(good, secret))
    with pytest.raises(UserError) as refused:
        AuthorizedKeys(folder / "admitted")
    assert sentence in str(refused.value)
    authorized.refresh()
    assert names(authorized) == ["laptop", "phone"]
    assert sentence in caplog.text


def test_an_injector_may_own_what_others_own(folder: Path, identity_of: IdentityOf) -> None:
    keygen.create(folder, "injector", ClientIds.parse("all", "--clients"))
    authorized = AuthorizedKeys(folder / "admitted")
    assert names(authorized) == ["injector", "laptop", "phone"]
    assert authorized.may_speak(identity_of("injector").public, 0)
    assert authorized.may_speak(identity_of("phone").public, 0)


def test_other_files_are_passed_over(folder: Path) -> None:
    (folder / "admitted/README").write_text("of ours")
    (folder / "admitted/.phone.key").write_text("of an editor")
    (folder / "admitted/phone.key~").write_text("of an editor")
    assert names(AuthorizedKeys(folder / "admitted")) == ["laptop", "phone"]


def test_an_unreadable_folder_is_reported_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(UserError, match=r"keys/admitted cannot be read \(permission denied\)$"):
        AuthorizedKeys(folder / "admitted")


def test_a_missing_folder_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"keys/admitted does not exist, expected the authorized keys; see"):
        AuthorizedKeys(tmp_path / "keys/admitted")
