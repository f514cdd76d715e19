"""Compensation again, from recorded results and from a state."""

from pathlib import Path
from typing import Any

import pytest

from support.compensation import context, equal, inversion, made, numbers, plain, received, stale_round, taken
from unstale.compensators import Outcome
from unstale.compensators.inversion.engine import Engine
from unstale.journal import checkpoints


def played(subject, recorded: dict[int, Any] | None = None, first: int = 3) -> list[tuple[Any, Outcome]]:
    """Six rounds of two clients, of which each is stale every other time, and their recorded results."""
    result = []
    for version in range(first, 9):
        stale, fresh = version % 2, 1 - version % 2
        round_ = stale_round(
            received(stale, base_version=version - 3, staleness=3),
            received(fresh, base_version=version, staleness=0),
            version=version,
        )
        made_ = subject.make(round_) if recorded is None else recorded[version]
        result.append((made_, subject.take(round_, made_)))
    return result


LEARNING: dict[str, Any] = {"strength": "adaptive", "window": 2, "smooth_rounds": 3, "iterations_per_round": 6}
KINDS = [("gradient-inversion", LEARNING), ("auto", LEARNING), ("auto", {**LEARNING, "adapt": True, "window": 1})]
"""Inverting compensators with all that they keep between rounds."""


@pytest.mark.parametrize(("name", "given"), KINDS, ids=["inversion", "auto", "auto that adapts"])
def test_recorded_results_give_the_same_rounds(name, given, monkeypatch):
    first = played(subject := inversion(name, **given))
    recorded = {version: made_ for version, (made_, _) in enumerate(first, 3)}
    monkeypatch.setattr(Engine, "iterate", None)
    again = inversion(name, **given)
    second = played(again, recorded)
    assert all(equal(one[1], other[1]) for one, other in zip(first, second, strict=True))
    assert plain(again.state_dict()) == plain(subject.state_dict())
    assert any(outcome.errors for _, outcome in first)


def test_recorded_results_can_be_stored_in_a_file(tmp_path: Path):
    round_ = stale_round(received(0), received(1, is_kept=False), received(2))
    subject, again = inversion(), inversion()
    made_ = subject.make(round_)
    file = checkpoints.write(tmp_path, 4, {"made": made_}, {})
    read, _ = checkpoints.read(file.path)
    assert plain(read["made"]) == plain(made_)
    assert equal(subject.take(round_, made_), again.take(round_, read["made"]))


@pytest.mark.parametrize(("name", "given"), KINDS, ids=["inversion", "auto", "auto that adapts"])
def test_it_continues_from_its_state_to_the_bit_also_through_a_file(name, given, tmp_path: Path):
    whole = played(inversion(name, **given))
    subject = inversion(name, **given)
    for version in (3, 4):
        recorded = {number: made_ for number, (made_, _) in enumerate(whole, 3)}
        round_ = stale_round(
            received(version % 2, base_version=version - 3, staleness=3),
            received(1 - version % 2, base_version=version, staleness=0),
            version=version,
        )
        subject.take(round_, recorded[version])
    file = checkpoints.write(tmp_path, 5, subject.state_dict(), {})
    state, _ = checkpoints.read(file.path)
    resumed, straight = inversion(name, **given), inversion(name, **given)
    taken(resumed, received(9))  # the earlier state is removed
    resumed.load_state_dict(state)
    straight.load_state_dict(subject.state_dict())
    for one in (resumed, straight):
        rest = played(one, first=5)
        assert all(equal(a[1], b[1]) for a, b in zip(rest, whole[2:], strict=True))


def test_resuming_from_a_state_does_not_change_it():
    subject, other = (inversion(strength="adaptive") for _ in range(2))
    taken(subject, received(0))
    state = subject.state_dict()
    before = plain(state)
    other.load_state_dict(state)
    for one in (subject, other):
        taken(one, received(0, base_version=3, staleness=1), received(1, base_version=3), version=4)
    assert plain(state) == before


def test_stored_results_of_the_oracle_give_the_same(tmp_path: Path):
    def fresh_update(update, stale):
        return numbers(123, seed=77)

    subject = made("oracle", context(fresh_update=fresh_update))
    round_ = stale_round(received(0))
    first = subject.make(round_)
    read, _ = checkpoints.read(checkpoints.write(tmp_path, 4, {"made": first}, {}).path)
    assert equal(subject.take(round_, first), subject.take(round_, read["made"]))
