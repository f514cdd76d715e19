"""Every input in the repository, through its target, without a fuzzer; and planted mistakes, which they detect."""

import logging
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.choices import Choices
from fuzz.keep import BYTES_MAX, CORPUS, FILES_MAX, TARGETS, choose, facts_of, files, target_named
from unstale.coordinator import events
from unstale.coordinator.machine import Coordinator
from unstale.journal.recorder import Recorder
from unstale.server import client_limits
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.uploads import Uploads
from unstale_proto import codec
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import Receiving, Sending

NOT_OF_THE_SERVER = {Reason.UNAVAILABLE}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def reached(name: str) -> set[Hashable]:
    run = target_named(name)
    return {fact for path in files(name) for fact in facts_of(run, path.read_bytes())}


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_of_a_target_passes(name: str) -> None:
    run = target_named(name)
    inputs = files(name)
    assert 0 < len(inputs) <= FILES_MAX
    for path in inputs:
        data = path.read_bytes()
        assert len(data) <= BYTES_MAX
        try:
            run(data, lambda _: None)
        except Exception as error:
            raise AssertionError(f"{path.relative_to(CORPUS)}: {type(error).__name__}: {error}") from error


def test_every_folder_of_the_corpus_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_the_corpus_decodes_every_type_and_refuses_headers_for_every_reason() -> None:
    assert set(codec.TYPES) | client_limits.UNREADABLE | {"frames"} <= reached("header")


def test_the_corpus_causes_every_event_and_every_reason() -> None:
    # Simulated servers have no task_timeout_s and no target, and no client of the corpus loses 32 tasks in a row.
    not_simulated = {events.Resumed.__name__, events.TaskExpired.__name__, events.TargetReached.__name__}
    kinds = {kind.__name__ for kind in events.Event.__args__} - not_simulated
    reasons = set(Reason) - NOT_OF_THE_SERVER
    assert kinds | reasons <= reached("receive") | reached("endure")


def test_the_corpus_reads_and_damages_every_kind_of_file() -> None:
    facts = [fact for fact in reached("found") if isinstance(fact, tuple)]
    read = {fact[0] for fact in facts if fact[1:] == ("read",)}
    damaged = {fact[0] for fact in facts if fact[1:] != ("read",)}
    assert read >= {"identity", "public", "admitted", "look", "database", "row", "checkpoint", "load"}
    assert damaged >= {"identity", "public", "admitted", "look", "database", "row", "checkpoint", "found"}


def test_runs_of_the_corpus_finish_or_diverge() -> None:
    assert {"finished", "hopeless"} <= reached("endure")


# ----------------------------------------------------------------------------------------------------- planted mistakes


def broken_by(name: str) -> list[Path]:
    """The failing inputs of a target."""
    run = target_named(name)
    broken = []
    for path in files(name):
        try:
            run(path.read_bytes(), lambda _: None)
        except Exception:  # noqa: BLE001  (any failure counts)
            broken.append(path)
    return broken


def test_a_check_that_accepts_every_update_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale.learner.row_checks.defect", lambda *_: None)
    assert broken_by("receive")


def test_a_codec_that_raises_an_internal_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale_proto.codec.ValidationError", ZeroDivisionError)
    assert broken_by("header") and broken_by("receive")


def test_an_unverified_file_checksum_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale.journal.checkpoints._verify", lambda *_: None)
    assert broken_by("found")


def test_unvalidated_fields_of_a_file_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale_client.atomic_file.ValidationError", ZeroDivisionError)
    assert broken_by("found")


def test_answers_sent_before_storage_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "commit", lambda _: None)
    assert broken_by("receive")


def test_a_table_that_stores_every_connection_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Sender.send

    def keep_all(sender: Sender, route: bytes, *message: Any) -> bool:
        vars(sender).setdefault("everyone", set()).add(route)
        return send(sender, route, *message)

    monkeypatch.setattr(Sender, "send", keep_all)
    assert broken_by("endure")


def test_a_refusal_that_changes_state_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Sessions.admit

    def admit_and_refuse(sessions: Sessions, client_id: int, token: str, route: bytes) -> bytes | None:
        admit(sessions, client_id, token, route)
        raise RemoteContractError(Reason.UNKNOWN_CLIENT, "not this one")

    monkeypatch.setattr(Sessions, "admit", admit_and_refuse)
    assert broken_by("receive")


def test_a_payload_that_differs_from_its_announcement_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiving, "is_right", lambda _: True)
    assert broken_by("receive") or broken_by("endure")


def test_unbounded_parts_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Uploads, "_bound", lambda _: None)
    assert broken_by("receive") or broken_by("endure")


def test_a_model_sent_beyond_its_credit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    credited = Sending.credited

    def all_at_once(sending: Sending, credit: Credit) -> list[tuple[Chunk, memoryview]]:
        return credited(sending, credit.model_copy(update={"until": sending.payload_bytes}))

    monkeypatch.setattr(Sending, "credited", all_at_once)
    assert broken_by("receive")


def test_a_run_that_stalls_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_replace_task", lambda *_: None)
    assert broken_by("endure")


# ---------------------------------------------------------------------------------------------------------------- parts


def test_choices_consume_the_bytes_from_the_front() -> None:
    choices = Choices(bytes([7, 1, 2, 3, 255]))
    assert choices.number(4) == 3
    assert choices.number(300) == 0x0201 % 300
    assert (choices.taken(1), choices.are_over) == (b"\x03", False)
    assert choices.of("abc") == "a"
    assert choices.are_over
    assert (choices.number(300), choices.rest()) == (0, b"")


def test_the_inputs_that_add_most_are_chosen_first() -> None:
    facts = {b"a": {1}, b"bb": {1, 2}, b"cc": {1, 2}, b"d": {3}, b"eeee": {1, 2, 3, 4}, b"f": {5}}
    frozen = {data: frozenset[Hashable](found) for data, found in facts.items()}
    assert choose(frozen, most=9) == [b"eeee", b"f"]
    assert choose(frozen, most=1) == [b"eeee"]
    assert choose({data: frozen[data] for data in (b"a", b"bb", b"cc")}, most=9) == [b"bb"]
