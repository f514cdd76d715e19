"""The process that speaks to Ray, from the side of the run: it may refuse, crash and come back."""

from collections.abc import Callable, Iterator

import pytest
import torch

from unstale.errors import UserError
from unstale.remote import cluster
from unstale.remote.cluster import Cluster
from unstale.remote.frames import Start

FULL, EMPTY = {"values": torch.arange(3.0)}, {"values": torch.empty(0)}
GONE = "the Ray cluster breaks is gone"


@pytest.fixture
def to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Cluster]]:
    monkeypatch.setattr(cluster, "COURIER", "remote.played_courier")
    made: list[Cluster] = []

    def connect(address: str) -> Cluster:
        made.append(Cluster(Start(address=address, description="", cpus=1, gpus=0.0)))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def test_what_it_computes_comes_back_by_number(to):
    there = to("anywhere")
    numbers = [there.submit({"values": torch.full((2,), float(value))}) for value in range(3)]
    first = there.wait(numbers[:1], None)
    assert list(first) == numbers[:1]
    assert first[numbers[0]]["values"].tolist() == [0.0, 0.0]
    rest = there.wait(numbers, None)
    assert {number: answer["values"][0].item() for number, answer in rest.items()} == {
        numbers[1]: 1.0,
        numbers[2]: 2.0,
    }, "each is told once"


def test_what_was_cancelled_is_not_waited_for(to):
    there = to("anywhere")
    number = there.submit(FULL)
    there.cancel(number)
    assert there.wait([number], None) == {}


def test_a_wait_ends_with_its_time(to, monkeypatch):
    there = to("anywhere")
    number = there.submit(FULL)
    monkeypatch.setattr(there._courier, "hear", lambda longest_s: None)
    assert there.wait([number], 0.0) == {}


def test_a_refusal_is_the_users_sentence(to):
    with pytest.raises(UserError, match=r"^the sentence of the courier$"):
        to("refuses")


def test_a_crash_before_it_is_ready_is_said(to):
    with pytest.raises(UserError) as caught:
        to("crashes")
    assert str(caught.value) == (
        "compensator.ray is 'crashes', but what connects to it ended; see what it printed"
    )


@pytest.mark.parametrize("longest_s", [None, 60.0])
def test_a_crash_loses_what_is_under_way_and_it_comes_back_by_itself(to, longest_s):
    there = to("breaks")
    number = there.submit(EMPTY)
    assert there.wait([number], longest_s) == {number: GONE}
    number = there.submit(FULL)
    assert there.wait([number], None) == {number: GONE}, "nobody waits until it is back"
    assert there._hear(60.0), "it did not come back"
    number = there.submit(FULL)
    answer = there.wait([number], None)[number]
    assert torch.equal(answer["values"], FULL["values"])
