"""The process that speaks to Ray, from the side of the run: it may refuse, crash and come back."""

from collections.abc import Callable, Iterator
from errno import EAGAIN
from importlib.util import find_spec
from threading import Thread

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
        one._courier.kill()  # some of them stay


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
    assert_comes_back(there)


def test_one_that_crashed_unseen_comes_back_from_the_next_group_on(to):
    there = to("anywhere")
    there._courier._process.kill()
    there._courier._process.wait()
    number = there.submit(FULL)
    assert there.wait([number], None) == {number: "the Ray cluster anywhere is gone"}
    assert_comes_back(there)


def test_why_it_does_not_come_back_is_said(to, tmp_path):
    there = to(f"breaks:{tmp_path / 'broken'}")
    there.wait([there.submit(EMPTY)], None)
    there.submit(FULL)
    while there._hear(60.0):
        pass
    number = there.submit(FULL)
    assert there.wait([number], None) == {number: "the sentence of the courier"}


def test_one_that_does_not_end_holds_up_nobody(to, monkeypatch):
    there = to("leaves")
    there.wait([there.submit(EMPTY)], None)
    monkeypatch.setattr(cluster, "END_S", 10_000.0)  # in which it would not
    number = there.submit(FULL)
    assert there.wait([number], None) == {number: "the Ray cluster leaves is gone"}
    assert_comes_back(there)


def test_one_that_does_not_listen_loses_the_group(to, monkeypatch):
    monkeypatch.setattr(cluster, "PIPE_S", 1)
    there = to("listens no more")
    number = there.submit({"values": torch.zeros(10**6)})
    assert there.wait([number], None) == {number: "the Ray cluster listens no more is gone"}


def test_one_that_does_not_finish_what_it_says_loses_the_group(to, monkeypatch):
    monkeypatch.setattr(cluster, "PIPE_S", 1)
    there = to("stammers")
    number = there.submit(EMPTY)
    assert there.wait([number], None) == {number: "the Ray cluster stammers is gone"}


def test_whoever_waits_is_told_when_it_is_stopped(to):
    there = to("listens no more")
    number = there.submit(FULL)
    told: list[dict[int, object]] = []
    waits = Thread(target=lambda: told.append(there.wait([number], None)), daemon=True)
    waits.start()
    there.stop()
    waits.join(60.0)
    assert told == [{number: "the run was stopped"}]
    before = there._courier
    number = there.submit(FULL)
    assert there.wait([number], None) == {number: "the run was stopped"}
    assert there._courier is before, "nobody connects again"


def no_room(*args: object, **given: object) -> None:
    raise OSError(EAGAIN, "Resource temporarily unavailable")


NOT_STARTED = (
    "compensator.ray is 'breaks', but the process that connects to it does not start (Resource temporarily "
    "unavailable), expected room for one more; end others, or raise the limit"
)


def test_one_that_cannot_be_started_is_refused_in_a_sentence(to, monkeypatch):
    monkeypatch.setattr(cluster.subprocess, "Popen", no_room)
    with pytest.raises(UserError) as caught:
        to("breaks")
    assert str(caught.value) == NOT_STARTED


def test_one_that_cannot_be_started_again_loses_the_group_and_is_tried_again(to, monkeypatch):
    there = to("breaks")
    there.wait([there.submit(EMPTY)], None)
    with monkeypatch.context() as patch:
        patch.setattr(cluster.subprocess, "Popen", no_room)
        for _ in range(2):
            number = there.submit(FULL)
            assert there.wait([number], None) == {number: NOT_STARTED}
    there.submit(FULL)
    assert_comes_back(there)


def test_it_takes_no_program_from_the_folder_of_the_run(to, tmp_path, monkeypatch):
    (tmp_path / "safetensors.py").touch()
    monkeypatch.chdir(tmp_path)
    to("anywhere")


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_cluster_of_its_own_listens_to_this_machine_alone(to, monkeypatch):
    monkeypatch.setattr(cluster, "COURIER", "remote.ray_address")
    with pytest.raises(UserError, match=r"^127\.0\.0\.1$"):
        to("local")


def assert_comes_back(there: Cluster) -> None:
    assert there._hear(60.0), "it did not come back"
    number = there.submit(FULL)
    answer = there.wait([number], None)[number]
    assert torch.equal(answer["values"], FULL["values"])
