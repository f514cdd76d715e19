"""A payload in chunks, by hand and over networks that lose, repeat, reorder and break. Source: PROTOCOL.md 4.7."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parts import PlayedPart
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Chunk, Credit
from unstale_proto.transfer import (
    AHEAD_CHUNKS,
    LEAST_CHUNK_BYTES,
    STEADY_CHUNKS,
    WRONG_MAX,
    Receiving,
    Sending,
    checksum,
)

TASK = 7
WINDOW, CHUNK = 8, 2
PAYLOAD = bytes(range(21))


def cut(payload: bytes, *sizes: int) -> list[memoryview]:
    """A payload in frames of these sizes, and one of the rest."""
    frames, start = [], 0
    for size in (*sizes, len(payload)):
        frames.append(memoryview(payload)[start : start + size])
        start += size
    return [frame for frame in frames if len(frame)]


def receiving(part: PlayedPart | None = None, payload: bytes = PAYLOAD, *, place: bool = True) -> Receiving:
    made = Receiving(TASK, len(payload), checksum([memoryview(payload)]), part or PlayedPart(), window_bytes=WINDOW)
    made.has_place = place
    return made


def sending(payload: bytes = PAYLOAD, *sizes: int) -> Sending:
    return Sending(TASK, cut(payload, *sizes), chunk_bytes=CHUNK)


def credit(have: int, until: int, again: bool | None = None) -> Credit:
    return Credit(task_id=TASK, have=have, until=until, again=again)


def pieces(chunks: Sequence[tuple[Chunk, memoryview]]) -> list[tuple[int, bytes]]:
    return [(chunk.offset, bytes(piece)) for chunk, piece in chunks]


def frame(start: int, end: int) -> list[memoryview]:
    return [memoryview(PAYLOAD)[start:end]]


# -------------------------------------------------------------------------------------------------------------- by hand


def test_a_checksum_is_xxh3_64_in_16_hex_digits_for_any_split() -> None:
    assert checksum([memoryview(b"")]) == "2d06800538d394c2"  # the published value of no bytes
    assert checksum(cut(PAYLOAD)) == checksum(cut(PAYLOAD, 4, 4, 1))


def test_a_receiver_with_a_place_requests_a_window() -> None:
    assert receiving().ask() == credit(0, 8, again=True)


def test_a_receiver_without_a_place_waits() -> None:
    assert receiving(place=False).ask() == credit(0, 0, again=True)


def test_bytes_that_are_present_are_not_requested() -> None:
    part = PlayedPart()
    part.append(memoryview(PAYLOAD)[:5])
    assert receiving(part).ask() == credit(5, 13, again=True)


def test_a_part_longer_than_the_payload_is_discarded() -> None:
    part = PlayedPart()
    part.append(memoryview(bytes(22)))
    assert receiving(part).ask() == credit(0, 8, again=True)


def test_credit_is_sent_after_every_second_chunk_of_any_length() -> None:
    one = receiving()
    one.ask()
    granted = [one.take(start, frame(start, start + 1)) for start in range(21)]
    assert [each for each in granted if each] == [credit(have, min(have + 8, 21)) for have in range(2, 21, 2)]


def test_exhausted_credit_is_renewed_at_once() -> None:
    one = receiving()
    one.ask()
    assert one.take(0, frame(0, 8)) == credit(8, 16)


def test_a_repeated_chunk_is_ignored() -> None:
    one = receiving()
    one.ask()
    one.take(0, frame(0, 2))
    assert one.take(0, frame(0, 2)) is None
    assert one.part.have == 2


def test_a_gap_is_requested_once() -> None:
    one = receiving()
    one.ask()
    assert one.take(2, frame(2, 4)) == credit(0, 8, again=True)
    assert one.take(4, frame(4, 6)) is None
    assert one.part.have == 0


def test_a_chunk_beyond_the_credit_is_refused_and_not_stored() -> None:
    one = receiving()
    one.ask()
    with pytest.raises(RemoteContractError) as refused:
        one.take(0, frame(0, 9))
    assert refused.value.reason is Reason.NO_CREDIT
    assert one.part.have == 0


@pytest.mark.parametrize("frames", [[], [memoryview(b"")], [memoryview(b"a"), memoryview(b"b")]])
def test_a_chunk_is_one_frame(frames: list[memoryview]) -> None:
    one = receiving()
    one.ask()
    with pytest.raises(RemoteContractError) as refused:
        one.take(0, frames)
    assert refused.value.reason is Reason.WRONG_SIZE


def test_a_chunk_ends_within_the_payload() -> None:
    with pytest.raises(RemoteContractError) as refused:
        receiving().take(20, [memoryview(b"ab")])
    assert refused.value.reason is Reason.WRONG_SIZE


def test_chunks_in_flight_when_the_place_is_lost_are_stored_without_a_new_request() -> None:
    one = receiving()
    one.ask()
    one.has_place = False
    assert one.take(0, frame(0, 2)) is None
    assert one.part.have == 2
    assert one.take(4, frame(4, 6)) is None  # a gap is requested after the next place


def test_a_wrong_checksum_restarts_the_transfer_and_the_third_ends_it() -> None:
    one = receiving()
    for _ in range(WRONG_MAX):
        assert not one.is_unusable
        one.part.append(memoryview(bytes(21)))
        assert not one.is_right()
        assert one.part.have == 0
    assert one.is_unusable


def test_a_sender_sends_up_to_its_credit() -> None:
    one = sending()
    assert pieces(one.credited(credit(0, 5, again=True))) == [(0, b"\0\1"), (2, b"\2\3"), (4, b"\4")]
    assert pieces(one.credited(credit(2, 7))) == [(5, b"\5\6")]
    assert one.credited(credit(4, 7)) == []


def test_a_chunk_ends_with_its_frame() -> None:
    assert pieces(sending(PAYLOAD, 3).credited(credit(0, 6, again=True))) == [
        (0, b"\0\1"),
        (2, b"\2"),
        (3, b"\3\4"),
        (5, b"\5"),
    ]


def test_a_sender_returns_to_a_requested_offset() -> None:
    one = sending()
    one.credited(credit(0, 8, again=True))
    assert pieces(one.credited(credit(6, 8, again=True))) == [(6, b"\6\7")]


def test_chunks_shrink_after_a_loss_and_grow_without_one() -> None:
    long, short = 4 * LEAST_CHUNK_BYTES, LEAST_CHUNK_BYTES
    one = Sending(TASK, cut(bytes(200 * long)), chunk_bytes=long)

    def lengths(granted: Credit) -> set[int]:
        return {len(piece) for _, piece in one.credited(granted)}

    assert lengths(credit(0, 4 * long, again=True)) == {long}
    assert lengths(credit(0, 4 * long, again=True)) == {short}  # no chunk arrived
    have = STEADY_CHUNKS * short
    assert lengths(credit(have, have + 4 * long)) == {2 * short}
    have += STEADY_CHUNKS * 2 * short
    assert lengths(credit(have, have + 16 * long)) == {4 * short}
    have += STEADY_CHUNKS * 3 * short
    assert lengths(credit(have, have + 9 * short, again=True)) == {3 * short}


def test_the_number_of_chunks_in_flight_is_bounded() -> None:
    one = sending(bytes(100))
    assert len(one.credited(credit(0, 100, again=True))) == AHEAD_CHUNKS
    assert len(one.credited(credit(4, 100))) == 2


def test_an_overtaken_credit_is_ignored() -> None:
    one = sending()
    one.credited(credit(0, 8, again=True))
    one.credited(credit(6, 10))
    assert one.credited(credit(4, 21)) == []


def test_bytes_that_the_receiver_has_are_not_sent_for_a_credit_without_again() -> None:
    one = sending()
    assert pieces(one.credited(credit(4, 8))) == [(4, b"\4\5"), (6, b"\6\7")]
    assert pieces(one.credited(credit(4, 10))) == [(8, b"\x08\x09")]  # the position is beyond `have`


def test_no_chunk_exceeds_the_payload_for_any_credit() -> None:
    chunks = sending(b"abc").credited(credit(0, 1000, again=True))
    assert pieces(chunks) == [(0, b"ab"), (2, b"c")]


def test_a_complete_receiver_reports_it() -> None:
    one = sending()
    one.credited(credit(21, 21))
    assert one.is_whole


# ------------------------------------------------------------------------------------------------ networks of all kinds


class Play:
    """A sender, a receiver, and the chunks in flight, which the draws reorder, drop and duplicate."""

    def __init__(self, payload: bytes, sizes: Sequence[int], data: st.DataObject) -> None:
        self.payload, self.sizes, self.data = payload, sizes, data
        self.part = PlayedPart()
        self.receiver = receiving(self.part, payload)
        self.sender = sending(payload, *sizes)
        self.up: list[tuple[Chunk, memoryview]] = []
        self.down: list[Credit] = []
        self.heard_until = 0
        self.sent_bytes = 0

    def announce(self) -> None:
        self.down.append(self.receiver.ask())

    def hear(self, granted: Credit) -> None:
        self.heard_until = max(self.heard_until, granted.until)
        chunks = self.sender.credited(granted)
        assert all(chunk.offset + len(piece) <= self.heard_until for chunk, piece in chunks)
        self.sent_bytes += sum(len(piece) for _, piece in chunks)
        self.up.extend(chunks)

    def arrive(self, chunk: Chunk, piece: memoryview) -> None:
        answer = self.receiver.take(chunk.offset, [piece])  # raises if it is beyond the credit
        if answer is not None:
            self.down.append(answer)
        assert self.payload.startswith(self.part.bytes)

    def step(self) -> None:
        what = self.data.draw(st.sampled_from(["up", "down", "up", "down", "lose", "cut", "place", "beat"]))
        if what == "up" and self.up:
            place = self.data.draw(st.integers(0, min(3, len(self.up) - 1)))
            repeated = self.data.draw(st.booleans())
            self.arrive(*(self.up[place] if repeated else self.up.pop(place)))
        elif what == "down" and self.down:
            place = self.data.draw(st.integers(0, min(3, len(self.down) - 1)))
            repeated = self.data.draw(st.booleans())
            self.hear(self.down[place] if repeated else self.down.pop(place))
        elif what == "lose":
            del self.up[:1], self.down[1:]
        elif what == "cut":
            self.up.clear()
            self.down.clear()
            if self.data.draw(st.booleans()):
                self.sender = sending(self.payload, *self.sizes)  # restart of its process
            if self.data.draw(st.booleans()):
                self.receiver = receiving(self.part, self.payload)
        elif what == "place":
            self.receiver.has_place = not self.receiver.has_place
        else:
            self.announce()


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(1, 20), max_size=4), st.data())
def test_a_payload_arrives_complete_over_any_network(payload: bytes, sizes: list[int], data: st.DataObject) -> None:
    play = Play(payload, sizes, data)
    for _ in range(data.draw(st.integers(0, 60))):
        play.step()
    assert play.part.log == sorted(play.part.log)  # its length never decreases
    play.receiver.has_place = True
    play.up.clear()
    play.down.clear()
    for _ in range(len(payload) + 2):  # without further faults heartbeats reveal the losses
        play.announce()
        while play.up or play.down:
            if play.down:
                play.hear(play.down.pop(0))
            else:
                play.arrive(*play.up.pop(0))
    assert play.part.bytes == payload
    assert play.receiver.is_whole and play.receiver.is_right()


@given(st.integers(1, 60), st.lists(st.integers(1, 20), max_size=4))
def test_without_loss_every_byte_is_sent_once_without_heartbeats(size: int, sizes: list[int]) -> None:
    payload = bytes(range(size))
    receiver, sender = receiving(payload=payload), sending(payload, *sizes)
    granted, sent = [receiver.ask()], 0
    while granted:
        for chunk, piece in sender.credited(granted.pop(0)):
            sent += len(piece)
            answer = receiver.take(chunk.offset, [piece])
            granted += [] if answer is None else [answer]
    assert receiver.is_whole and sent == size


@given(st.data())
def test_a_flipped_bit_is_detected_and_the_payload_is_sent_again(data: st.DataObject) -> None:
    receiver, sender = receiving(), sending()
    damaged = data.draw(st.integers(0, len(PAYLOAD) - 1))
    for attempt in range(2):
        granted = [receiver.ask()]
        while granted:
            for chunk, piece in sender.credited(granted.pop(0)):
                came = bytearray(piece)
                if attempt == 0 and chunk.offset <= damaged < chunk.offset + len(piece):
                    came[damaged - chunk.offset] ^= 1
                answer = receiver.take(chunk.offset, [memoryview(came)])
                granted += [] if answer is None else [answer]
        assert receiver.is_right() == (attempt == 1)
    assert receiver.part.mapped() == PAYLOAD
