"""Thirty kills without effect; and intentional errors, which the checks must detect.

`make crash` kills 200, of any seed, and repeats a run of a seed.
"""

import copy
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crash import places
from crash.attempt import attempts, table
from crash.checks import Checks
from crash.conftest import KILLED
from crash.plan import ROUNDS, Fate, Plan, drawn
from crash.play import FailureError, Play, Played
from crash.tap import Frames
from unstale_proto.messages import Ack, Task

SEED = 4
KILLS = 30


@pytest.mark.network
@pytest.mark.slow
def test_crashes_lose_no_acknowledged_update_and_change_no_version(
    record_property: Callable[[str, object], None],
) -> None:
    made = list(attempts(SEED, KILLS))
    record_property(KILLED, [f"seed {SEED}", *(line for one in made for line in table(one))])
    failures = [one.failure for one in made if one.failure is not None]
    assert not failures, "\n".join(failures)
    assert sum(one.kills for one in made) == KILLS


def test_every_crash_point_exists() -> None:
    for by_kind in (places.FIRST, places.AGAIN, places.DURING, places.LAST):
        for place in (one for those in by_kind.values() for one in those):
            places.found(place)


def test_a_stream_is_split_into_messages_for_any_segmentation() -> None:
    greeting = b"\xff" + bytes(63)
    ready = b"\x04\x03abc"  # a command
    alone = b"\x00\x02hi"
    with_payload = b"\x01\x03two" + b"\x02" + (300).to_bytes(8, "big") + bytes(300)
    data = greeting + ready + alone + with_payload + b"\x04\x01p" + b"\x00\x05three"
    frames = Frames()
    assert [header for byte in data for header in frames.feed(bytes([byte]))] == [b"hi", b"two", b"three"]
    assert list(Frames().feed(data)) == [b"hi", b"two", b"three"]


# --- the checks detect errors ---


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A run without kills, with all updates kept."""
    plan = drawn(0, 0, kills=0)
    plan.settings["run"] |= {"keep_updates": True, "checkpoint_every": 15}
    return Play(plan, tmp_path_factory.mktemp("undisturbed")).run()


def copied(played: Played, folder: Path) -> Played:
    """A copy to change."""
    shutil.copytree(played.folder, folder / "copy")
    return replace(played, folder=folder / "copy", sent=copy.deepcopy(played.sent))


def sql(*statements: str) -> Callable[[Played], None]:
    """A change of the database."""

    def change(played: Played) -> None:
        with sqlite3.connect(played.folder / "run" / "run.db") as opened:
            for statement in statements:
                assert opened.execute(statement).rowcount > 0
        opened.close()

    return change


def flip_a_bit(played: Played) -> None:
    path = played.folder / "run" / "segments" / "00000002.rows"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def add_unstored_ack(played: Played) -> None:
    played.sent.acks.append(Ack(task_id=100_000, outcome="accepted", first_outcome="accepted"))


def add_unstored_task(played: Played) -> None:
    task = played.sent.tasks[0]
    played.sent.tasks.append(Task(**{**task.model_dump(), "task_id": 100_000}))


_SOME = "(SELECT min(handle) FROM updates WHERE handle > 4)"
_TWICE = f"INSERT INTO updates SELECT {{}} FROM updates WHERE handle = {_SOME}"
_COLUMNS = [
    "(SELECT max(seq) + 1 FROM updates)",
    "at_s, client_id, task_id, base_version, outcome, reason, num_examples, batch_examples, loss, local_rate",
    "norm, norm_buffers, norm_extra, metrics",
    "100000",
    "offset, size_bytes, checksum, row_checksum, segment, round, position, staleness, weight, state_checksum",
]

_REFUSED = "outcome = 'rejected', reason = 'non-finite', handle = NULL, round = NULL"


@pytest.mark.network
@pytest.mark.parametrize(
    ("change", "finds"),
    [
        (sql(f"DELETE FROM updates WHERE handle = {_SOME}"), "an event is missing"),
        (sql(_TWICE.format(", ".join(_COLUMNS))), "accepted twice"),
        (sql(f"UPDATE updates SET round = NULL, position = NULL WHERE handle = {_SOME}"), "round"),
        (sql("DELETE FROM events WHERE seq = (SELECT min(seq) FROM events WHERE seq > 20)"), "an event is missing"),
        (sql("UPDATE updates SET position = 1 - position WHERE round = 4 AND position < 2"), "round 4 has"),
        (sql("UPDATE rounds SET digest = 'ab' WHERE version = 7"), "version 7 is ab"),
        (sql("DELETE FROM rounds WHERE version = 60"), f"expected {ROUNDS}"),
        (sql(f"UPDATE updates SET {_REFUSED} WHERE handle = {_SOME}"), "was sent, but the stored verdicts are"),
        (sql("UPDATE tasks SET version = version + 1 WHERE task_id = 2"), "task 2"),
        (flip_a_bit, r"is not what its client makes|version \d+ is"),  # the sum may be rounded to the same
        (add_unstored_ack, "was sent, but the stored verdicts are"),
        (add_unstored_task, "was sent, but is not stored"),
    ],
)
def test_lost_duplicated_and_changed_updates_are_detected(
    change: Callable[[Played], None], finds: str, undisturbed: Played, tmp_path: Path
) -> None:
    changed = copied(undisturbed, tmp_path)
    change(changed)
    with pytest.raises(FailureError, match=finds):
        Checks(changed).check()


@pytest.mark.network
def test_the_records_of_an_undisturbed_run_are_consistent(undisturbed: Played) -> None:
    found = Checks(undisturbed).check()
    assert found.recomputed == found.accepted >= 3 * ROUNDS
    assert undisturbed.deaths == []


def without_gateways(plan: Plan) -> Plan:
    """The plan with the connections in the server, which sends an ack at once."""
    return replace(plan, settings={**plan.settings, "server": {"gateways": 0}}, gateway_deaths=())


@pytest.mark.network
@pytest.mark.slow
def test_a_server_that_acknowledges_before_storing_is_detected(tmp_path: Path) -> None:
    def fates(plan: Plan, kind: str, name: str, life: int) -> Fate | None:
        acknowledged = places.Place("crash.child:acknowledged", places.AFTER, 20)
        return Fate(rounds=ROUNDS, wait_s=0.0, place=acknowledged, call=20) if kind == "server" else None

    plan = without_gateways(drawn(0, 5, kills=1))
    with pytest.raises(FailureError, match="was sent, but the stored verdicts are"):
        Checks(Play(plan, tmp_path, fates=fates, early_ack=True).run()).check()


@pytest.mark.network
@pytest.mark.slow
def test_a_run_stopped_during_a_round_is_not_complete(tmp_path: Path) -> None:
    def fates(plan: Plan, kind: str, name: str, life: int) -> Fate | None:
        making = places.Place("unstale.learner.learner:Learner.apply_round", places.ASKED, 5)
        asked = Fate(rounds=ROUNDS, wait_s=0.0, place=making, call=5, polite=True)
        return asked if kind == "server" and life == 0 else None

    played = Play(without_gateways(drawn(0, 5, kills=1)), tmp_path, fates=fates).run()
    Checks(played).check()
    assert [death.polite for death in played.deaths] == [True]
