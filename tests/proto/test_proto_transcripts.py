"""The transcripts of whole sessions, replayed from their files against the client session and the server protocol."""

import json
from collections import deque
from typing import Any

import pytest

from support import transcripts
from support.wire import RUN
from unstale_client.actions import Action, Send
from unstale_proto import codec
from unstale_proto.messages import Message, Update
from wire_schema import subsection, table, unquoted

FILES = {path.stem: path for path in sorted(transcripts.FOLDER.glob("*.json"))}
Step = dict[str, Any]
Sent = tuple[str, list[str]]


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILES[name].read_text(encoding="utf-8"))
    return content


def message_of(step: Step) -> tuple[Message, list[memoryview]]:
    return codec.decode(bytes.fromhex(step["header"])), [memoryview(bytes.fromhex(frame)) for frame in step["payload"]]


def unrepeated(steps: list[Step], sender: str) -> list[Sent]:
    """The messages that a side has sent itself."""
    return [(step["header"], step["payload"]) for step in steps if step.get("from") == sender and not step.get("copy")]


def test_every_scenario_has_its_file_and_its_row_in_the_document() -> None:
    text = transcripts.wire_schema.section(11)
    rows = table(text)
    assert [unquoted(row["transcript"]) for row in rows] == list(transcripts.SCENARIOS)
    assert sorted(FILES) == sorted(transcripts.SCENARIOS)


@pytest.mark.parametrize("name", FILES)
def test_a_transcript_is_recorded_again_to_the_byte(name: str) -> None:
    assert FILES[name].read_text(encoding="utf-8") == transcripts.text(name)


@pytest.mark.parametrize("name", FILES)
def test_the_client_sends_the_messages_of_the_transcript(name: str) -> None:
    content = read(name)
    session = transcripts.session_of(content)
    sent: list[Sent] = []

    def take(actions: list[Action]) -> None:
        sent.extend(
            (codec.encode(action.message).hex(), [bytes(frame).hex() for frame in action.parcel])
            for action in actions
            if isinstance(action, Send)
        )

    for step in content["steps"]:
        at_s = step["at_s"]
        match step.get("event"):
            case "reachable":
                take(session.reachable(at_s))
            case "unreachable":
                session.unreachable()
            case transcripts.RESTART:
                update, payload = message_of(step)
                assert isinstance(update, Update)
                stored = [transcripts.kept(update, payload)]
                session = transcripts.session_of(content, session=step["session"], kept=stored)
            case "timer":
                assert session.due_s == at_s
                take(session.tick(at_s))
            case "trained":
                update, payload = message_of(step)
                assert isinstance(update, Update)
                take(session.trained(RUN, update, payload))
            case None if step["from"] == "server" and not step.get("lost"):
                message, payload = message_of(step)
                take(session.received(message, payload, at_s))
    assert sent == unrepeated(content["steps"], "client")


@pytest.mark.parametrize("name", FILES)
def test_the_server_sends_the_messages_of_the_transcript(name: str) -> None:
    content = read(name)
    server = transcripts.server_of(content)
    connection, sent = 0, deque[Sent]()
    for step in content["steps"]:
        server.now_s = step["at_s"]
        if step.get("event") in ("unreachable", transcripts.UNSEEN, transcripts.RESTART):
            connection += 1
        elif step.get("event") == transcripts.ROUND:
            server.compute()
        elif step.get("from") == "client" and not step.get("lost"):
            _, payload = message_of(step)
            server.protocol.on_message(b"%d" % connection, bytes.fromhex(step["header"]), payload)
            server.protocol.flush()
        for message, frames in server.wire.sent.pop(b"%d" % connection, []):
            sent.append((codec.encode(message).hex(), [bytes(frame).hex() for frame in frames]))
    assert list(sent) == unrepeated(content["steps"], "server")


def kinds(name: str) -> list[str]:
    """Sender and type of each message that arrived, and the lost ones in brackets."""
    messages = [step for step in read(name)["steps"] if "from" in step]
    return [
        f"({step['from'][0]} {step['type']})" if step.get("lost") else f"{step['from'][0]} {step['type']}"
        for step in messages
    ]


JOIN = ["c hello", "s welcome", "s task"]


def test_a_session_at_the_minimum_has_the_messages_of_the_figure() -> None:
    assert kinds("round") == [
        *JOIN, "c heartbeat", "s heartbeat", "c update", "s ack", "s task", "c update", "s ack",
        "s stop", "c bye", "s bye",
    ]  # fmt: skip


def test_a_lost_update_is_sent_once_more_on_the_connection_after() -> None:
    assert kinds("reconnect") == [
        *JOIN, "(c update)", "c heartbeat", "s error", "c hello", "s welcome", "c update", "s ack",
    ]  # fmt: skip
    hello = [step for step in read("reconnect")["steps"] if step.get("type") == "hello"][1]
    assert hello["fields"]["holding"] == [1]
    refusal = next(step for step in read("reconnect")["steps"] if step.get("type") == "error")
    assert (refusal["fields"]["reason"], refusal["fields"]["refused"]) == ("hello-first", "heartbeat")


def test_a_lost_ack_is_a_duplicate_once_more() -> None:
    assert kinds("lost_ack") == [
        *JOIN, "c update", "(s ack)", "c heartbeat", "s heartbeat", "c update", "s ack",
    ]  # fmt: skip
    ack = read("lost_ack")["steps"][-1]["fields"]
    assert (ack["outcome"], ack["first_outcome"]) == ("duplicate", "accepted")


def test_a_lost_task_is_replaced_by_another() -> None:
    assert kinds("lost_task") == [
        "c hello", "s welcome", "(s task)", "c heartbeat", "s heartbeat", "c heartbeat", "s heartbeat", "s task",
        "c update", "s ack",
    ]  # fmt: skip


def test_a_stored_update_is_sent_by_the_process_after_and_counts_once() -> None:
    assert kinds("outbox") == [
        *JOIN, "c update", "(s ack)", "c hello", "s welcome", "c update", "s ack", "s task",
    ]  # fmt: skip
    steps = read("outbox")["steps"]
    first, hello = (step["fields"] for step in steps if step.get("type") == "hello")
    ack = [step["fields"] for step in steps if step.get("type") == "ack"][1]
    assert (hello["holding"], ack["outcome"], ack["first_outcome"]) == ([1], "duplicate", "accepted")
    assert hello["session"] != first["session"]


def offsets(name: str, sender: str) -> list[int]:
    steps = read(name)["steps"]
    return [step["fields"]["offset"] for step in steps if step.get("from") == sender and step.get("type") == "chunk"]


def test_transfers_resume_at_the_received_bytes() -> None:
    # 8 bytes in chunks of 2; bytes 2 and 3 are lost with the connection, in both directions.
    assert offsets("chunks", "server") == [0, 2, 2, 4, 6]
    assert offsets("chunks", "client") == [0, 2, 2, 4, 6]


def test_a_doubled_announcement_is_answered_once_and_a_doubled_again_costs_one_window() -> None:
    steps = read("doubled_again")["steps"]
    assert [step["then"] for step in steps if step.get("type") == "update" and "from" in step] == [["sends credit"], []]
    assert offsets("doubled_again", "client") == [0, 2, 0, 2, 4, 6]
    assert kinds("doubled_again")[-1] == "s ack"


def test_the_events_of_the_transcripts_are_those_of_the_state_table() -> None:
    known = {event for row in table(subsection("4.8")) for event in row["event"].replace("`", "").split(", ")}
    others = {"trained", transcripts.UNSEEN, transcripts.RESTART, transcripts.ROUND}
    assert {step["event"] for name in FILES for step in read(name)["steps"] if "event" in step} <= known | others
