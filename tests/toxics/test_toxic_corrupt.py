"""`corrupt`: bits of a message are flipped."""

from collections import Counter
from math import sqrt

import pytest

from support.toxics import message, passage


def damage(settings: dict[str, object], **fields: object) -> tuple[int, ...]:
    (out,) = passage({"type": "corrupt", **settings}).send(message(**fields))
    return out.damage


def test_the_given_number_of_different_bits_is_flipped() -> None:
    flipped = damage({"bits": 20}, size_bytes=10)
    assert len(set(flipped)) == 20
    assert min(flipped) >= 0 and max(flipped) < 80
    assert list(flipped) == sorted(flipped)


def test_a_short_message_bounds_the_number_of_flips() -> None:
    assert damage({"bits": 20}, size_bytes=2) == tuple(range(16))
    assert damage({"bits": 20}, size_bytes=0) == ()


@pytest.mark.parametrize(("where", "low", "high"), [("header", 0, 24), ("payload", 24, 80), ("anywhere", 0, 80)])
def test_the_damage_is_in_the_selected_part(where: str, low: int, high: int) -> None:
    every_bit = damage({"where": where, "bits": 80}, size_bytes=10, header_bytes=3)
    assert every_bit == tuple(range(low, high))


def test_a_message_without_a_payload_is_unchanged() -> None:
    assert damage({"where": "payload"}, size_bytes=3, header_bytes=3) == ()


def test_every_bit_is_as_likely_as_another() -> None:
    way = passage({"type": "corrupt"})
    flipped = Counter(
        bit for number in range(4000) for out in way.send(message(number=number, size_bytes=1)) for bit in out.damage
    )
    deviation = sqrt(4000 * 1 / 8 * 7 / 8)
    assert sorted(flipped) == list(range(8))
    assert all(abs(times - 500) < 4 * deviation for times in flipped.values())


def test_flipping_a_bit_twice_restores_it() -> None:
    way = passage({"type": "corrupt", "bits": 8}, {"type": "corrupt", "name": "again", "bits": 8})
    (out,) = way.send(message(size_bytes=1))
    assert out.damage == ()
